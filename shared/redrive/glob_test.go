package redrive_test

import (
	"testing"
	"unicode/utf8"

	"geodlq/shared/redrive"
)

// likeMatches is PostgreSQL's LIKE (manual, section 9.7.1), the slow and obvious way.
func likeMatches(pattern, text []rune) bool {
	if len(pattern) == 0 {
		return len(text) == 0
	}
	switch pattern[0] {
	case '%':
		return likeMatches(pattern[1:], text) || len(text) > 0 && likeMatches(pattern, text[1:])
	case '_':
		return len(text) > 0 && likeMatches(pattern[1:], text[1:])
	case '\\':
		pattern = pattern[1:]
	}
	return len(text) > 0 && text[0] == pattern[0] && likeMatches(pattern[1:], text[1:])
}

// A glob means the same in the database and in the archive.
func FuzzGlob(f *testing.F) {
	for _, c := range [][2]string{
		{"county-*", "county-7"}, {"*/1", "village/1"}, {"a?c", "abc"}, {"100%_*", "100%_x"}, {`\*`, "*"}, {`a\`, `a\`}, {"[ab]", "[ab]"}, {"[ab]", "a"}, {"", ""}, {"*", ""}, {"é?", "éé"}, {`\\`, `\`},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, glob, text string) {
		if !utf8.ValidString(glob) || !utf8.ValidString(text) || len(glob) > 20 || len(text) > 20 {
			return // not what a filter lets through, or slow
		}
		pattern, isGlob := redrive.Like(glob)
		want := pattern == text
		if isGlob {
			want = likeMatches([]rune(pattern), []rune(text))
		}
		if got := redrive.GlobMatches(glob, text); got != want {
			t.Errorf("%q on %q: %t in the archive, %t in the database (%q)", glob, text, got, want, pattern)
		}
	})
}
