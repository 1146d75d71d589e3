package localtest_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatch"
	cwtypes "github.com/aws/aws-sdk-go-v2/service/cloudwatch/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"geodlq/infra/local/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

func TestDatabaseIsMigratedAndItsOwn(t *testing.T) {
	t.Parallel()
	one := localtest.Pool(t, localtest.Database(t))
	two := localtest.Pool(t, localtest.Database(t))
	if _, err := one.Exec(t.Context(), `INSERT INTO failed_geotasks (task_id, geom, epsg, geom_hash)
		VALUES ('t1', ST_SetSRID(ST_MakePoint(1, 2), 4326), 4326, 'aa')`); err != nil {
		t.Fatal(err)
	}
	var n, m int
	if err := one.QueryRow(t.Context(), "SELECT count(*) FROM failed_geotasks").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if err := two.QueryRow(t.Context(), "SELECT count(*) FROM failed_geotasks").Scan(&m); err != nil {
		t.Fatal(err)
	}
	if n != 1 || m != 0 {
		t.Errorf("rows in the schema written to %d, in the other %d; want 1 and 0", n, m)
	}
}

func TestBucketHonoursIfNoneMatch(t *testing.T) {
	t.Parallel()
	client, bucket := localtest.S3(t), localtest.Bucket(t)
	put := func(body string) error {
		_, err := client.PutObject(t.Context(), &s3.PutObjectInput{
			Bucket: &bucket, Key: aws.String("dead-letters/batch_id=a+b/é 1.parquet"),
			Body: strings.NewReader(body), IfNoneMatch: aws.String("*"),
		})
		return err
	}
	if err := put("first"); err != nil {
		t.Fatal(err)
	}
	var refused smithy.APIError
	if err := put("second"); !errors.As(err, &refused) || refused.ErrorCode() != "PreconditionFailed" {
		t.Errorf("second put: %v; want PreconditionFailed", err)
	}
	got, err := client.GetObject(t.Context(), &s3.GetObjectInput{Bucket: &bucket, Key: aws.String("dead-letters/batch_id=a+b/é 1.parquet")})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(body, []byte("first")) || aws.ToString(got.VersionId) == "" {
		t.Errorf("body %q, version %q; want the first body and a version", body, aws.ToString(got.VersionId))
	}
}

func TestRecorderSeesItsNamespaceOnly(t *testing.T) {
	t.Parallel()
	one, two := localtest.CloudWatch(t), localtest.CloudWatch(t)
	stamp := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	_, err := one.Client().PutMetricData(t.Context(), &cloudwatch.PutMetricDataInput{
		Namespace:  &one.Namespace,
		MetricData: []cwtypes.MetricDatum{{MetricName: aws.String("PoisonRate"), Value: aws.Float64(0.25), Timestamp: &stamp}},
	})
	if err != nil {
		t.Fatal(err)
	}
	data := one.Data(t)
	if len(data) != 1 || data[0].Name != "PoisonRate" || *data[0].Value != 0.25 || !data[0].Timestamp.Equal(stamp) {
		t.Errorf("recorded %+v", data)
	}
	if data := two.Data(t); len(data) != 0 {
		t.Errorf("recorded %+v in a namespace nobody wrote to", data)
	}
}
