SELECT
        cohort_digest, tenant, agent, model, environment, harness_version, policy_version, track, split
    FROM cohorts FINAL
