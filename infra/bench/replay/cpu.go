package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// cpuTime is the processor time spent so far by this process and by the database's
// sessions, which it reads where the database runs on this machine. On a busy machine
// it tells two ways apart when rows a second no longer do.
func (b *bench) cpuTime(ctx context.Context) (time.Duration, error) {
	rows, err := b.pool.Query(ctx, `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND application_name = $1`, b.schema)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	sum, err := processTime("self")
	for rows.Next() && err == nil {
		var pid int
		if err = rows.Scan(&pid); err == nil {
			var d time.Duration
			d, err = processTime(strconv.Itoa(pid))
			sum += d
		}
	}
	if err == nil {
		err = rows.Err()
	}
	return sum, err
}

// processTime reads user and system time of a process from proc(5), in clock ticks
// of 10 ms.
func processTime(pid string) (time.Duration, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%s/stat has %d fields after the name, want 13 and more", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime, fields 14 and 15 of the line
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
