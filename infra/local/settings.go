package local

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// Settings are what a process needs to know to use a stack: the lines of
// .local/stack.env.
type Settings struct {
	DatabaseURL      string
	S3Endpoint       string
	MetricsEndpoint  string // of the CloudWatch recorder
	Region           string
	AccessKeyID      string
	SecretAccessKey  string
	InboxBucket      string
	DeadLetterBucket string
}

func (s *Settings) fields() []struct {
	key   string
	value *string
} {
	return []struct {
		key   string
		value *string
	}{
		{"DATABASE_URL", &s.DatabaseURL},
		{"AWS_ENDPOINT_URL_S3", &s.S3Endpoint},
		{"AWS_ENDPOINT_URL_CLOUDWATCH", &s.MetricsEndpoint},
		{"AWS_REGION", &s.Region},
		{"AWS_ACCESS_KEY_ID", &s.AccessKeyID},
		{"AWS_SECRET_ACCESS_KEY", &s.SecretAccessKey},
		{"INBOX_BUCKET", &s.InboxBucket},
		{"DEAD_LETTER_BUCKET", &s.DeadLetterBucket},
	}
}

// Environ returns the settings as KEY=VALUE, in the order of the file.
func (s Settings) Environ() []string {
	var env []string
	for _, f := range s.fields() {
		env = append(env, f.key+"="+*f.value)
	}
	return env
}

// WriteFile writes the settings as KEY=VALUE lines. Only the user can read the
// file, for it holds the database's password; it appears whole or not at all.
func (s Settings) WriteFile(path string) error {
	draft := path + ".new"
	if err := os.WriteFile(draft, []byte(strings.Join(s.Environ(), "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the stack's settings: %w", err)
	}
	if err := os.Rename(draft, path); err != nil {
		return fmt.Errorf("write the stack's settings: %w", err)
	}
	return nil
}

// ReadSettings reads a file that [Settings.WriteFile] wrote.
func ReadSettings(path string) (Settings, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Settings{}, fmt.Errorf("read the stack's settings: %w", err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = value
		}
	}
	var s Settings
	var missing []string
	for _, f := range s.fields() {
		if *f.value = values[f.key]; *f.value == "" {
			missing = append(missing, f.key)
		}
	}
	if missing != nil {
		return Settings{}, fmt.Errorf("read the stack's settings from %s: %w: %s", path, errIncomplete, strings.Join(missing, ", "))
	}
	return s, nil
}

var errIncomplete = errors.New("these settings are missing")

// AWSEnviron returns the environment, as KEY=VALUE, with which a process made by
// the SDK's default configuration reaches the stack's servers and no others: what
// the user has configured for AWS, credentials above all, is out of its sight.
func (s Settings) AWSEnviron() []string {
	return []string{
		"AWS_ENDPOINT_URL_S3=" + s.S3Endpoint,
		"AWS_ENDPOINT_URL_CLOUDWATCH=" + s.MetricsEndpoint,
		"AWS_REGION=" + s.Region,
		"AWS_DEFAULT_REGION=" + s.Region,
		"AWS_ACCESS_KEY_ID=" + s.AccessKeyID,
		"AWS_SECRET_ACCESS_KEY=" + s.SecretAccessKey,
		"AWS_SESSION_TOKEN=",
		"AWS_CONFIG_FILE=" + os.DevNull,
		"AWS_SHARED_CREDENTIALS_FILE=" + os.DevNull,
		"AWS_EC2_METADATA_DISABLED=true",
	}
}
