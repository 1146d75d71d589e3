package transform

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

// moment is a date, a time, both, or a year and month, as far as its text said.
type moment struct {
	time  time.Time // without an offset: in UTC
	zoned bool      // the text had an offset
}

// temporalKind is what a field of dates or times stores.
type temporalKind uint8

const (
	dateKind temporalKind = iota
	timeKind
	datetimeKind
	yearmonthKind
)

// text is the form that is stored: that of ISO 8601 and XML Schema.
func (k temporalKind) text(m moment) string {
	layout := "2006-01-02T15:04:05.999999999"
	switch k {
	case dateKind:
		layout = "2006-01-02"
	case timeKind:
		layout = "15:04:05.999999999"
	case yearmonthKind:
		layout = "2006-01"
	}
	if m.zoned && k == datetimeKind {
		layout += "Z07:00"
	}
	return m.time.Format(layout)
}

// digits cuts n decimal digits off s.
func digits(s string, n int) (value int, rest string, ok bool) {
	if len(s) < n {
		return 0, s, false
	}
	for i := range n {
		if s[i]-'0' > 9 {
			return 0, s, false
		}
		value = value*10 + int(s[i]-'0')
	}
	return value, s[n:], true
}

// civil makes a time of its parts, unless there is no such day or time.
func civil(year, month, day, hour, minute, second, nano int, zone *time.Location) (time.Time, bool) {
	if month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, nano, zone)
	return t, t.Month() == time.Month(month) // 30 February is 1 or 2 March
}

// readDate reads yyyy-mm-dd off the start of s.
func readDate(s string) (year, month, day int, rest string, ok bool) {
	if len(s) < 10 || s[4] != '-' || s[7] != '-' {
		return 0, 0, 0, s, false
	}
	year, _, okYear := digits(s, 4)
	month, _, okMonth := digits(s[5:], 2)
	day, _, okDay := digits(s[8:], 2)
	return year, month, day, s[10:], okYear && okMonth && okDay
}

// readTime reads hh:mm:ss off the start of s, and a fraction of a second where it may have one.
func readTime(s string, fraction bool) (hour, minute, second, nano int, rest string, ok bool) {
	if len(s) < 8 || s[2] != ':' || s[5] != ':' {
		return 0, 0, 0, 0, s, false
	}
	hour, _, okHour := digits(s, 2)
	minute, _, okMinute := digits(s[3:], 2)
	second, rest, okSecond := digits(s[6:], 2)
	if ok = okHour && okMinute && okSecond; ok && fraction && strings.HasPrefix(rest, ".") {
		nano, rest, ok = readFraction(rest[1:])
	}
	return hour, minute, second, nano, rest, ok
}

// readFraction reads the digits of a fraction of a second; those beyond nanoseconds are left out.
func readFraction(s string) (nano int, rest string, ok bool) {
	n := 0
	for n < len(s) && s[n]-'0' <= 9 {
		n++
	}
	if n == 0 {
		return 0, s, false
	}
	nano, _ = strconv.Atoi((s[:n] + "000000000")[:9])
	return nano, s[n:], true
}

// readOffset reads Z or ±hh:mm, or ±hhmm where colon is not asked for, off the start of s.
func readOffset(s string, colon bool) (zone *time.Location, rest string, ok bool) {
	if strings.HasPrefix(s, "Z") {
		return time.UTC, s[1:], true
	}
	if s == "" || s[0] != '+' && s[0] != '-' {
		return nil, s, false
	}
	sign := 1
	if s[0] == '-' {
		sign = -1
	}
	hours, s, ok := digits(s[1:], 2)
	if !ok {
		return nil, s, false
	}
	if strings.HasPrefix(s, ":") {
		s = s[1:]
	} else if colon {
		return nil, s, false
	}
	minutes, s, ok := digits(s, 2)
	if !ok || hours > 14 || minutes > 59 { // XML Schema part 2, section 3.2.7.3
		return nil, s, false
	}
	return time.FixedZone("", sign*(hours*3600+minutes*60)), s, true
}

// parse reads the default form of the kind, as Table Schema takes it from XML Schema.
func (k temporalKind) parse(s string) (m moment, ok bool) {
	switch k {
	case dateKind:
		year, month, day, rest, ok := readDate(s)
		if !ok || rest != "" {
			return m, false
		}
		m.time, ok = civil(year, month, day, 0, 0, 0, 0, time.UTC)
		return m, ok
	case timeKind:
		hour, minute, second, nano, rest, ok := readTime(s, false)
		if !ok || rest != "" {
			return m, false
		}
		m.time, ok = civil(1, 1, 1, hour, minute, second, nano, time.UTC)
		return m, ok
	case yearmonthKind:
		year, s, ok := digits(s, 4)
		if !ok || !strings.HasPrefix(s, "-") {
			return m, false
		}
		month, s, ok := digits(s[1:], 2)
		if !ok || s != "" {
			return m, false
		}
		m.time, ok = civil(year, month, 1, 0, 0, 0, 0, time.UTC)
		return m, ok
	default:
		return parseDatetime(s, "T")
	}
}

// parseDatetime reads a date, one of the separators, a time and an optional offset.
func parseDatetime(s, separators string) (m moment, ok bool) {
	year, month, day, s, ok := readDate(s)
	if !ok || s == "" || strings.IndexByte(separators, s[0]) < 0 {
		return m, false
	}
	hour, minute, second, nano, s, ok := readTime(s[1:], true)
	if !ok {
		return m, false
	}
	zone := time.UTC
	if s != "" {
		if zone, s, ok = readOffset(s, true); !ok || s != "" {
			return m, false
		}
		m.zoned = true
	}
	m.time, ok = civil(year, month, day, hour, minute, second, nano, zone)
	return m, ok
}

// parseAny reads what "format": "any" takes: the default forms, a space for the T, a date alone for a
// datetime and the date of a datetime, yyyymmdd, and the date of an e-mail (RFC 5322) or of HTTP.
// Forms whose day and month could be taken for each other, such as 03/04/2020, are not among them.
func (k temporalKind) parseAny(s string) (m moment, ok bool) {
	if m, ok = k.parse(s); ok || k == yearmonthKind {
		return m, ok
	}
	if k == timeKind {
		hour, minute, second, nano, rest, ok := readTime(s, true)
		if !ok {
			hour, minute, second, nano, rest, ok = readTime(s+":00", false)
		}
		if !ok || rest != "" {
			return m, false
		}
		m.time, ok = civil(1, 1, 1, hour, minute, second, nano, time.UTC)
		return m, ok
	}
	if m, ok = parseDatetime(s, "T "); ok {
		return m, true
	}
	if m, ok = dateKind.parse(s); ok {
		return m, true
	}
	if len(s) == 8 {
		if m, ok = dateKind.parse(s[:4] + "-" + s[4:6] + "-" + s[6:]); ok {
			return m, true
		}
	}
	for _, layout := range []string{time.RFC1123Z, time.RFC1123, "2 Jan 2006 15:04:05 -0700"} {
		if t, err := time.Parse(layout, s); err == nil {
			return moment{time: t, zoned: true}, true
		}
	}
	return m, false
}

// strptime is a parsed pattern of the C function of that name, as far as Python documents it.
type strptime []directive

// directive is a verb of the pattern, or literal text (verb 0).
type directive struct {
	verb byte
	text string
}

// parsePattern reads a pattern. Verbs that say nothing about the date (%U, %W, %w) and
// locale-bound ones (%c, %x, %X, %Z) are refused.
func parsePattern(pattern string) (strptime, error) {
	var out strptime
	literal := func(s string) {
		if n := len(out); n > 0 && out[n-1].verb == 0 {
			out[n-1].text += s
		} else {
			out = append(out, directive{text: s})
		}
	}
	if !strings.Contains(pattern, "%") {
		return nil, fmt.Errorf("%q is no strptime pattern: it has no %% directive", pattern)
	}
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			literal(pattern[i : i+1])
			continue
		}
		i++
		if i < len(pattern) && pattern[i] == '-' {
			i++ // %-d: digits without padding, which every number takes
		}
		if i == len(pattern) {
			return nil, fmt.Errorf("the strptime pattern %q ends in the middle of a directive", pattern)
		}
		switch verb := pattern[i]; verb {
		case '%':
			literal("%")
		case 'Y', 'y', 'm', 'd', 'H', 'I', 'M', 'S', 'f', 'p', 'j', 'b', 'B', 'h', 'a', 'A', 'z':
			out = append(out, directive{verb: verb})
		case 'F':
			out = append(out, directive{verb: 'Y'}, directive{text: "-"}, directive{verb: 'm'}, directive{text: "-"}, directive{verb: 'd'})
		case 'T':
			out = append(out, directive{verb: 'H'}, directive{text: ":"}, directive{verb: 'M'}, directive{text: ":"}, directive{verb: 'S'})
		default:
			r, _ := utf8.DecodeRuneInString(pattern[i:])
			return nil, fmt.Errorf("the strptime pattern %q has the directive %%%c, which is not supported", pattern, r)
		}
	}
	return out, nil
}

// parse reads s by the pattern from end to end.
func (p strptime) parse(s string) (m moment, ok bool) {
	year, month, day, yearDay := 1900, 1, 1, 0
	hour, minute, second, nano := 0, 0, 0, 0
	afternoon, twelve := false, false
	zone := time.UTC
	for _, d := range p {
		switch d.verb {
		case 0:
			if !strings.HasPrefix(s, d.text) {
				return m, false
			}
			s = s[len(d.text):]
		case 'Y':
			year, s, ok = digits(s, 4)
		case 'y':
			// POSIX: 69 to 99 are of the twentieth century.
			if year, s, ok = digits(s, 2); year < 69 {
				year += 2000
			} else {
				year += 1900
			}
		case 'm':
			month, s, ok = upTo(s, 2)
		case 'd':
			day, s, ok = upTo(s, 2)
		case 'H':
			hour, s, ok = upTo(s, 2)
		case 'I':
			twelve = true
			if hour, s, ok = upTo(s, 2); hour < 1 || hour > 12 {
				return m, false
			}
		case 'M':
			minute, s, ok = upTo(s, 2)
		case 'S':
			second, s, ok = upTo(s, 2)
		case 'f':
			nano, s, ok = readFraction(s)
		case 'j':
			yearDay, s, ok = upTo(s, 3)
		case 'p':
			var half int
			half, s, ok = oneOf(s, "AM", "PM")
			afternoon = half == 1
		case 'B':
			month, s, ok = oneOf(s, months.long...)
			month++
		case 'b', 'h':
			month, s, ok = oneOf(s, months.short...)
			month++
		case 'A':
			_, s, ok = oneOf(s, days.long...)
		case 'a':
			_, s, ok = oneOf(s, days.short...)
		case 'z':
			zone, s, ok = readOffset(s, false)
			m.zoned = true
		}
		if d.verb != 0 && !ok {
			return m, false
		}
	}
	if s != "" {
		return m, false
	}
	if twelve {
		hour %= 12
		if afternoon {
			hour += 12
		}
	}
	if yearDay > 0 {
		first, _ := civil(year, 1, 1, 0, 0, 0, 0, time.UTC)
		date := first.AddDate(0, 0, yearDay-1)
		if date.Year() != year {
			return m, false
		}
		month, day = int(date.Month()), date.Day()
	}
	m.time, ok = civil(year, month, day, hour, minute, second, nano, zone)
	return m, ok
}

// upTo reads one to n digits, as many as there are.
func upTo(s string, n int) (value int, rest string, ok bool) {
	for n > 1 && (len(s) < n || s[n-1]-'0' > 9) {
		n--
	}
	return digits(s, n)
}

// oneOf reads one of the names in any case and returns its index.
func oneOf(s string, names ...string) (index int, rest string, ok bool) {
	for i, name := range names {
		if len(s) >= len(name) && strings.EqualFold(s[:len(name)], name) {
			return i, s[len(name):], true
		}
	}
	return 0, s, false
}

// The names of the C locale.
var (
	months = names(12, func(i int) string { return time.Month(i + 1).String() })
	days   = names(7, func(i int) string { return time.Weekday(i).String() })
)

// names returns n names, and their first three letters.
func names(n int, name func(int) string) (all struct{ long, short []string }) {
	for i := range n {
		all.long = append(all.long, name(i))
		all.short = append(all.short, name(i)[:3])
	}
	return all
}
