"""Install, start and supervise the whole loop on one machine: broker, registry, store, jobs, learner and workers."""
