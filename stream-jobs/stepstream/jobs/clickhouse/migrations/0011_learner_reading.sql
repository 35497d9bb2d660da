-- As 0010, with `read_share`: the time in which something was in the log and had not been read yet.

CREATE OR REPLACE VIEW learner_time AS
SELECT
    model,
    root,
    update,
    occurred_at,
    arraySum(mapValues(seconds)) AS total_s,
    seconds['train'] / total_s AS train_share,
    seconds['wait'] / total_s AS wait_share,
    seconds['read'] / total_s AS read_share,
    seconds['fold'] / total_s AS fold_share,
    seconds['publish'] / total_s AS publish_share
FROM (SELECT * FROM learner_updates FINAL);
