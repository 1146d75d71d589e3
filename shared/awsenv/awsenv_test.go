package awsenv_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/google/go-cmp/cmp"

	"geodlq/shared/awsenv"
)

// function sets what Lambda sets, and change on top.
func function(t *testing.T, change map[string]string) {
	t.Helper()
	env := map[string]string{
		"AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", "AWS_SESSION_TOKEN": "session",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
		"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "", "AWS_ENDPOINT_URL_CLOUDWATCH": "", "AWS_ENDPOINT_URL_SECRETS_MANAGER": "",
		"AWS_USE_FIPS_ENDPOINT": "", "AWS_USE_DUALSTACK_ENDPOINT": "",
	}
	for k, v := range change {
		env[k] = v
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
}

// A client made from either configuration behaves the same.
func TestConfigIsTheSDKsOwn(t *testing.T) {
	for situation, change := range map[string]map[string]string{
		"as Lambda gives it":         nil,
		"without a session":          {"AWS_SESSION_TOKEN": ""},
		"an endpoint of one service": {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000"},
		"endpoints of all, and one":  {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ENDPOINT_URL_CLOUDWATCH": "http://127.0.0.1:2", "AWS_ENDPOINT_URL_SECRETS_MANAGER": "http://127.0.0.1:3"},
		"FIPS":                       {"AWS_USE_FIPS_ENDPOINT": "true"},
		"dual stack":                 {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
		"neither":                    {"AWS_USE_FIPS_ENDPOINT": "false", "AWS_USE_DUALSTACK_ENDPOINT": "false"},
	} {
		t.Run(situation, func(t *testing.T) {
			function(t, change)
			ours, err := awsenv.Config()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := awsconfig.LoadDefaultConfig(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(describe(t, theirs), describe(t, ours)); d != "" {
				t.Error(d)
			}
		})
	}
}

// settings is what a request depends on, from the configuration or the clients.
type settings struct {
	Region, Key, Secret, Session string
	Checksum                     aws.RequestChecksumCalculation
	Validation                   aws.ResponseChecksumValidation
	MinCompress                  int64
	NoCompression                bool
	S3, CloudWatch, Secrets      string // base endpoints
	FIPS                         aws.FIPSEndpointState
	DualStack                    aws.DualStackEndpointState
	Attempts                     int
	CloudWatchCompress           int64
}

func describe(t *testing.T, cfg aws.Config) settings {
	t.Helper()
	creds, err := cfg.Credentials.Retrieve(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	bucket, watch, secrets := s3.NewFromConfig(cfg).Options(), cloudwatch.NewFromConfig(cfg).Options(), secretsmanager.NewFromConfig(cfg).Options()
	return settings{
		Region: cfg.Region, Key: creds.AccessKeyID, Secret: creds.SecretAccessKey, Session: creds.SessionToken,
		Checksum: bucket.RequestChecksumCalculation, Validation: bucket.ResponseChecksumValidation,
		MinCompress: cfg.RequestMinCompressSizeBytes, NoCompression: cfg.DisableRequestCompression,
		S3: aws.ToString(bucket.BaseEndpoint), CloudWatch: aws.ToString(watch.BaseEndpoint), Secrets: aws.ToString(secrets.BaseEndpoint),
		FIPS: bucket.EndpointOptions.UseFIPSEndpoint, DualStack: bucket.EndpointOptions.UseDualStackEndpoint,
		Attempts: bucket.Retryer.MaxAttempts(), CloudWatchCompress: watch.RequestMinCompressSizeBytes,
	}
}

// What is stored is sent with a checksum, and what comes back is checked.
func TestObjectsAreSentWithAChecksum(t *testing.T) {
	headers := make(chan http.Header, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		headers <- r.Header
	}))
	defer srv.Close()
	function(t, map[string]string{"AWS_ENDPOINT_URL_S3": srv.URL})
	cfg, err := awsenv.Config()
	if err != nil {
		t.Fatal(err)
	}
	_, err = s3.NewFromConfig(cfg).PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("b"), Key: aws.String("k"), Body: bytes.NewReader([]byte("x"))})
	if err != nil {
		t.Fatal(err)
	}
	if h := <-headers; h.Get("X-Amz-Checksum-Crc32") == "" || h.Get("X-Amz-Security-Token") != "session" {
		t.Errorf("sent with %v", h)
	}
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	function(t, map[string]string{"AWS_REGION": "", "AWS_SECRET_ACCESS_KEY": ""})
	_, err := awsenv.Config()
	var missing *awsenv.MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("error is %v", err)
	}
	if d := cmp.Diff([]string{"AWS_REGION", "AWS_SECRET_ACCESS_KEY"}, missing.Variables); d != "" {
		t.Error(d)
	}
}

func TestAFlagThatIsNone(t *testing.T) {
	function(t, map[string]string{"AWS_USE_FIPS_ENDPOINT": "maybe"})
	cfg, err := awsenv.Config()
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range cfg.ConfigSources {
		_, _, err := source.(interface {
			GetUseFIPSEndpoint(context.Context) (aws.FIPSEndpointState, bool, error)
		}).GetUseFIPSEndpoint(t.Context())
		if err == nil {
			t.Error("AWS_USE_FIPS_ENDPOINT=maybe is taken")
		}
	}
}
