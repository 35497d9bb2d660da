// A support agent in Go: it handles one request and publishes each step when it completes, then the outcome.
// It prints topic, trajectory and id of each acknowledged event, one line of JSON each.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	p, err := newPublisher(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	trajectory := uuid.Must(uuid.NewV7()).String()

	last, err := solve("My kettle from order A17 arrived broken.", func(r round) error {
		took := float32(r.Duration.Seconds() * 1000)
		about := newEnvelope(trajectory)
		event := step{
			envelope: about, StepIndex: r.Index, TaskID: "refund-A17", Agent: "support-agent",
			Environment: "support-desk", HarnessVersion: "support@1", Model: "scripted",
			// Only the inference server knows the tokens and their log-probabilities. Agents that call Stepstream's gateway
			// get fidelity `token`, which a learner can train on.
			Fidelity: "text", PromptSharedMessages: r.SharedMessages, Messages: r.Messages, Response: r.Response,
			Sampling: sampling{Temperature: 1, TopP: 1}, FinishReason: r.FinishReason, DurationMs: &took,
		}
		return tell("steps", about, p.publish(ctx, "steps", about, event))
	})
	if err != nil {
		return err
	}
	// The outcome ends the trajectory. With the index of its last step, `label` waits for late steps.
	value, about := 1.0, newEnvelope(trajectory)
	outcome := feedback{
		envelope: about, Name: "outcome", Value: &value, Source: "environment", End: "terminated", LastStepIndex: &last,
	}
	return tell("feedback", about, p.publish(ctx, "feedback", about, outcome))
}

func newEnvelope(trajectory string) envelope {
	return envelope{
		EventID:    uuid.Must(uuid.NewV7()).String(), // identity of the event: a retry sends the same one
		OccurredAt: time.Now().UnixMicro(), Producer: producerName, Tenant: "default",
		// Consent of the person behind the request: train (learn from it), analyse (statistics only) or none.
		Consent: "train", TrajectoryID: trajectory,
	}
}

func tell(topic string, about envelope, err error) error {
	if err != nil {
		return fmt.Errorf("event %s for %s: %w", about.EventID, topic, err)
	}
	line, err := json.Marshal(map[string]string{"topic": topic, "trajectory_id": about.TrajectoryID, "event_id": about.EventID})
	if err == nil {
		fmt.Println(string(line))
	}
	return err
}
