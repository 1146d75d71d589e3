package config_test

import (
	"errors"
	"strings"
	"testing"

	"geodlq/shared/config"
)

func TestForms(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		variable, function string
		good, bad          []string
	}{
		{
			"DATABASE_HOST", "metrics",
			[]string{"h", "10.0.0.1", "my-db.cluster-ab12.eu-west-1.rds.amazonaws.com", strings.Repeat("a", 255)},
			[]string{"-h", "h-", ".h", "h.", "a b", "h:5432", "postgres://h", "ü", strings.Repeat("a", 256)},
		},
		{
			"DEAD_LETTER_BUCKET", "metrics",
			[]string{"abc", "my.bucket-1", strings.Repeat("a", 63)},
			[]string{"ab", "Bucket", "-abc", "abc-", "a/b", "s3://abc", "arn:aws:s3:::abc", strings.Repeat("a", 64)},
		},
		{
			"INBOX_PREFIX", "capture",
			[]string{"incoming/", "a/b/"},
			[]string{"incoming", "/", "/incoming/", "in\ncoming/"},
		},
		{
			"DATABASE_NAME", "metrics",
			[]string{"gis", "Große Daten", strings.Repeat("a", 63)},
			[]string{"a\x00b", "a\nb", strings.Repeat("a", 64)},
		},
		{
			"STAGE", "metrics",
			[]string{"prod", "eu_2-blue"},
			[]string{"a b", "a.b", strings.Repeat("a", 33)},
		},
		{
			"AWS_REGION", "metrics",
			[]string{"eu-west-1", "us-gov-east-1"},
			[]string{"EU-WEST-1", "eu west"},
		},
		{
			"METRICS_NAMESPACE", "metrics",
			[]string{"GeoDLQ", "Team/GeoDLQ:prod#1"},
			[]string{"Geo DLQ", "AWS/GeoDLQ", strings.Repeat("a", 256)},
		},
		{
			"CONTRACT_URI", "replay",
			[]string{"s3://contracts/parcels/v2.json", "/var/task/contract.json", "./contract.json", "testdata/contract.json", "file:///var/task/contract.json"},
			[]string{"s3://contracts", "s3://contracts/", "s3:///key", "https://example.com/c.json", "/", "file://host/c.json"},
		},
		{
			"DATABASE_SECRET_ARN", "migrate",
			[]string{"arn:aws:secretsmanager:eu-west-1:123456789012:secret:rds!db-1-AbCdEf", "arn:aws-us-gov:secretsmanager:us-gov-east-1:123456789012:secret:a:b"},
			[]string{"arn:aws:secretsmanager:eu-west-1:123:secret:a", "arn:aws:ssm:eu-west-1:123456789012:secret:a", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:"},
		},
	} {
		for _, v := range tc.good {
			if err := loaders[tc.function](cloud(tc.variable + "=" + v)); err != nil {
				t.Errorf("%s=%q: %v", tc.variable, v, err)
			}
		}
		for _, v := range tc.bad {
			var cerr *config.Error
			if err := loaders[tc.function](cloud(tc.variable + "=" + v)); !errors.As(err, &cerr) || len(cerr.Problems) != 1 || cerr.Problems[0].Variable != tc.variable {
				t.Errorf("%s=%q: %v", tc.variable, v, err)
			}
		}
	}
}
