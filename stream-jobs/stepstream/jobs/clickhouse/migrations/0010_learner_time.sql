-- What a learner's time went into, update by update: `wait_share` is the time in which nothing to train on had come.

CREATE OR REPLACE VIEW learner_time AS
SELECT
    model,
    root,
    update,
    occurred_at,
    arraySum(mapValues(seconds)) AS total_s,
    seconds['train'] / total_s AS train_share,
    seconds['wait'] / total_s AS wait_share,
    seconds['fold'] / total_s AS fold_share,
    seconds['publish'] / total_s AS publish_share
FROM (SELECT * FROM learner_updates FINAL);
