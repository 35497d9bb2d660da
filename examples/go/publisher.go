package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	"github.com/twmb/franz-go/pkg/sr"
)

const producerName = "go-example/0.1.0"

var types = map[string]string{"steps": "stepstream.Step", "feedback": "stepstream.Feedback"}

// publisher sends steps and feedback by the protocol: Avro with the registry's schemas, keyed by trajectory, with
// CloudEvents headers. Use one per process.
type publisher struct {
	client *kgo.Client
	serde  sr.Serde
}

// variable returns the environment variable STEPSTREAM_name, or otherwise if it is unset or empty.
func variable(name, otherwise string) string {
	return cmp.Or(os.Getenv("STEPSTREAM_"+name), otherwise)
}

func newPublisher(ctx context.Context) (*publisher, error) {
	client, err := kgo.NewClient(append(security(),
		kgo.SeedBrokers(strings.Split(variable("KAFKA_BOOTSTRAP", "127.0.0.1:9092"), ",")...),
		// Idempotence and acks=all are this client's defaults. Murmur2 by key, like all Stepstream producers: a
		// trajectory's steps and feedback share a partition.
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
	)...)
	if err != nil {
		return nil, err
	}
	p := &publisher{client: client}
	if err := p.lookUpSchemas(ctx); err != nil {
		client.Close()
		return nil, err
	}
	return p, nil
}

// lookUpSchemas gets the schemas that `stepstream topics apply` registered. A producer only looks them up, so that it
// cannot change the registry by accident.
func (p *publisher) lookUpSchemas(ctx context.Context) error {
	options := []sr.ClientOpt{sr.URLs(variable("SCHEMA_REGISTRY_URL", "http://127.0.0.1:8081"))}
	if user, password, found := strings.Cut(variable("SCHEMA_REGISTRY_USER_INFO", ""), ":"); found {
		options = append(options, sr.BasicAuth(user, password))
	}
	registry, err := sr.NewClient(options...)
	if err != nil {
		return err
	}
	for topic, value := range map[string]any{"steps": step{}, "feedback": feedback{}} {
		found, err := registry.SchemaByVersion(ctx, topic+"-value", -1)
		if err != nil {
			return fmt.Errorf("schema of %s: %w (has `stepstream topics apply` run?)", topic, err)
		}
		schema, err := avro.Parse(found.Schema.Schema)
		if err != nil {
			return fmt.Errorf("schema of %s: %w", topic, err)
		}
		p.serde.Register(found.ID, value, sr.EncodeFn(func(value any) ([]byte, error) { return avro.Marshal(schema, value) }))
	}
	return nil
}

// publish returns when all in-sync replicas have the event. To send it again after an error, pass the same event:
// duplicates count once.
func (p *publisher) publish(ctx context.Context, topic string, about envelope, event any) error {
	value, err := p.serde.Encode(event)
	if err != nil {
		return fmt.Errorf("event for %s: %w", topic, err)
	}
	record := &kgo.Record{Topic: topic, Key: []byte(about.TrajectoryID), Value: value}
	for name, text := range map[string]string{
		"ce_specversion": "1.0",
		"ce_id":          about.EventID,
		"ce_type":        types[topic],
		"ce_source":      about.Producer,
		"ce_time":        time.UnixMicro(about.OccurredAt).UTC().Format(time.RFC3339Nano),
		"content-type":   "application/avro",
	} {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: name, Value: []byte(text)})
	}
	return p.client.ProduceSync(ctx, record).FirstErr()
}

func (p *publisher) close() { p.client.Close() }

func security() []kgo.Opt {
	var options []kgo.Opt
	protocol := variable("KAFKA_SECURITY_PROTOCOL", "PLAINTEXT")
	if strings.HasSuffix(protocol, "SSL") {
		options = append(options, kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS12}))
	}
	if strings.HasPrefix(protocol, "SASL") {
		login := scram.Auth{User: variable("KAFKA_SASL_USERNAME", ""), Pass: variable("KAFKA_SASL_PASSWORD", "")}
		options = append(options, kgo.SASL(login.AsSha512Mechanism()))
	}
	return options
}
