// Package awsenv configures AWS clients from the environment that Lambda gives a
// function: region, credentials of the role, and the standard variables that name
// other endpoints.
//
// It stands in for the SDK's own config package, which also knows profiles, single
// sign-on, instance metadata and more, brings the clients of four services for them,
// and doubles what a cold start initialises. None of these exist in a function.
package awsenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

// Config is what the SDK's LoadDefaultConfig makes of the same environment.
// AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be set, or the error is
// a [*MissingError]; AWS_SESSION_TOKEN, AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_<SERVICE>,
// AWS_USE_FIPS_ENDPOINT and AWS_USE_DUALSTACK_ENDPOINT may be.
func Config() (aws.Config, error) {
	region, key, secret := os.Getenv("AWS_REGION"), os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	var missing []string
	for _, v := range []struct{ name, value string }{{"AWS_REGION", region}, {"AWS_ACCESS_KEY_ID", key}, {"AWS_SECRET_ACCESS_KEY", secret}} {
		if v.value == "" {
			missing = append(missing, v.name)
		}
	}
	if len(missing) > 0 {
		return aws.Config{}, &MissingError{Variables: missing}
	}
	cfg := aws.Config{
		Region:        region,
		Credentials:   credentials.NewStaticCredentialsProvider(key, secret, os.Getenv("AWS_SESSION_TOKEN")),
		ConfigSources: []any{environment{}},
		// The SDK's defaults, which its config package sets and clients by themselves
		// do not: every object is sent with a checksum and compared with the one it has.
		RequestChecksumCalculation:  aws.RequestChecksumCalculationWhenSupported,
		ResponseChecksumValidation:  aws.ResponseChecksumValidationWhenSupported,
		RequestMinCompressSizeBytes: 10240,
		AccountIDEndpointMode:       aws.AccountIDEndpointModePreferred,
	}
	if url := os.Getenv("AWS_ENDPOINT_URL"); url != "" {
		cfg.BaseEndpoint = &url
	}
	return cfg, nil
}

// MissingError names the variables without which AWS cannot be called. Lambda sets
// them all; elsewhere "aws configure export-credentials --format env" prints them.
type MissingError struct{ Variables []string }

func (e *MissingError) Error() string {
	return fmt.Sprintf("configure AWS: %s not set; Lambda sets them, elsewhere \"aws configure export-credentials --format env\" prints those of a profile",
		strings.Join(e.Variables, ", "))
}

// environment answers the questions that clients put to the sources of their
// configuration when they are made.
type environment struct{}

// GetServiceBaseEndpoint reads AWS_ENDPOINT_URL_<SERVICE>; sdkID is the service's
// name as the SDK knows it, such as "CloudWatch" or "Secrets Manager".
func (environment) GetServiceBaseEndpoint(_ context.Context, sdkID string) (string, bool, error) {
	url := os.Getenv("AWS_ENDPOINT_URL_" + strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToUpper(sdkID)))
	return url, url != "", nil
}

func (environment) GetUseFIPSEndpoint(context.Context) (aws.FIPSEndpointState, bool, error) {
	on, set, err := flag("AWS_USE_FIPS_ENDPOINT")
	if !on {
		return aws.FIPSEndpointStateDisabled, set, err
	}
	return aws.FIPSEndpointStateEnabled, set, err
}

func (environment) GetUseDualStackEndpoint(context.Context) (aws.DualStackEndpointState, bool, error) {
	on, set, err := flag("AWS_USE_DUALSTACK_ENDPOINT")
	if !on {
		return aws.DualStackEndpointStateDisabled, set, err
	}
	return aws.DualStackEndpointStateEnabled, set, err
}

func flag(name string) (on, set bool, err error) {
	text := os.Getenv(name)
	if text == "" {
		return false, false, nil
	}
	if on, err = strconv.ParseBool(text); err != nil {
		return false, false, errors.New(name + " is neither true nor false")
	}
	return on, true, nil
}
