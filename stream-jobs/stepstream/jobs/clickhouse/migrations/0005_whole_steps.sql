-- What an export needs to give a step back as it was told, but for its tokens, which only the log holds.

ALTER TABLE steps ADD COLUMN IF NOT EXISTS shared_messages UInt32 DEFAULT 0 COMMENT 'Prompt messages that repeat the step that it continues.';
ALTER TABLE steps ADD COLUMN IF NOT EXISTS top_p Float64 DEFAULT 1 COMMENT 'Nucleus bound of the sampling.';
ALTER TABLE steps ADD COLUMN IF NOT EXISTS max_tokens Nullable(Int32) COMMENT 'Most tokens of the response.';
ALTER TABLE steps ADD COLUMN IF NOT EXISTS seed Nullable(Int64) COMMENT 'Seed of the sampling.';
ALTER TABLE steps ADD COLUMN IF NOT EXISTS usage_prompt_tokens Nullable(Int64) COMMENT 'Tokens of the whole prompt as the upstream counted them.';
ALTER TABLE steps ADD COLUMN IF NOT EXISTS usage_response_tokens Nullable(Int64) COMMENT 'Tokens of the response as the upstream counted them.';
