package main

// These structures omit some fields of the schemas: hamba/avro fills those with the schema's defaults.

type envelope struct {
	EventID      string `avro:"event_id"`
	OccurredAt   int64  `avro:"occurred_at_us"`
	Producer     string `avro:"producer"`
	Tenant       string `avro:"tenant"`
	Consent      string `avro:"consent"`
	TrajectoryID string `avro:"trajectory_id"`
}

type step struct {
	envelope
	StepIndex            int       `avro:"step_index"`
	TaskID               string    `avro:"task_id"`
	Agent                string    `avro:"agent"`
	Environment          string    `avro:"environment"`
	HarnessVersion       string    `avro:"harness_version"`
	Model                string    `avro:"model"`
	Fidelity             string    `avro:"fidelity"`
	PromptSharedMessages int       `avro:"prompt_shared_messages"`
	Messages             []message `avro:"messages"`
	Response             message   `avro:"response"`
	Sampling             sampling  `avro:"sampling"`
	FinishReason         string    `avro:"finish_reason"`
	DurationMs           *float32  `avro:"duration_ms"`
}

type sampling struct {
	Temperature float64 `avro:"temperature"`
	TopP        float64 `avro:"top_p"`
}

type feedback struct {
	envelope
	Name          string   `avro:"name"`
	Value         *float64 `avro:"value"`
	Source        string   `avro:"source"`
	End           string   `avro:"end"`
	LastStepIndex *int     `avro:"last_step_index"`
}
