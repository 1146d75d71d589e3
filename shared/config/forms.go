package config

import "strings"

// forms are the forms that text settings can have, by the name in their tag. They
// are plain code and no regular expressions because every cold start runs them, and
// compiling an expression takes longer than all checks together.
var forms = map[string]func(string) bool{
	"stage":        func(s string) bool { return length(s, 1, 32) && all(s, letters+digits+"_-") },
	"host":         isHost,
	"label":        func(s string) bool { return length(s, 1, 63) && printable(s) },
	"region":       func(s string) bool { return length(s, 1, 32) && all(s, lower+digits+"-") },
	"bucket":       isBucket,
	"prefix":       func(s string) bool { return len(s) > 1 && s[0] != '/' && strings.HasSuffix(s, "/") && printable(s) },
	"namespace":    func(s string) bool { return length(s, 1, 255) && all(s, letters+digits+"._/#:-") },
	"secret ARN":   isSecretARN,
	"contract URI": isContractURI,
}

const (
	lower   = "abcdefghijklmnopqrstuvwxyz"
	letters = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	digits  = "0123456789"
)

func isHost(s string) bool {
	return length(s, 1, 255) && all(s, letters+digits+".-") && all(s[:1]+s[len(s)-1:], letters+digits)
}

// isBucket follows the naming rules of S3 as far as they can tell a name from a URL
// or an ARN.
func isBucket(s string) bool {
	return length(s, 3, 63) && all(s, lower+digits+".-") && all(s[:1]+s[len(s)-1:], lower+digits)
}

// isSecretARN takes arn:<partition>:secretsmanager:<region>:<account>:secret:<name>.
func isSecretARN(s string) bool {
	p := strings.SplitN(s, ":", 7)
	return len(p) == 7 && p[0] == "arn" && p[1] != "" && p[2] == "secretsmanager" && p[3] != "" &&
		len(p[4]) == 12 && all(p[4], digits) && p[5] == "secret" && p[6] != ""
}

func isContractURI(s string) bool {
	if rest, ok := strings.CutPrefix(s, "s3://"); ok {
		bucket, key, _ := strings.Cut(rest, "/")
		return isBucket(bucket) && key != ""
	}
	if rest, ok := strings.CutPrefix(s, "file://"); ok {
		return len(rest) > 1 && rest[0] == '/'
	}
	return s != "/" && !strings.Contains(s, "://")
}

func length(s string, least, most int) bool { return len(s) >= least && len(s) <= most }

func all(s, set string) bool {
	for i := range len(s) {
		if strings.IndexByte(set, s[i]) < 0 {
			return false
		}
	}
	return true
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
