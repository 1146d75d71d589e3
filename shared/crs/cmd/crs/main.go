// Command crs shows how GeoDLQ understands the name of a coordinate reference
// system, and who would transform its positions.
//
//	go run ./shared/crs/cmd/crs EPSG:26910              # into Web Mercator
//	go run ./shared/crs/cmd/crs -to EPSG:4326 26910
//	go run ./shared/crs/cmd/crs -list                   # all that are computed in Go
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"geodlq/shared/crs"
)

func main() {
	to := flag.String("to", "EPSG:3857", "target CRS")
	list := flag.Bool("list", false, "list the CRSs that are computed in Go")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: crs [-to target] name...\n       crs -list")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *list {
		show(os.Stdout)
		return
	}
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	failed := false
	for _, name := range flag.Args() {
		if err := explain(os.Stdout, name, *to); err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func show(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for c := range crs.Computed() {
		fmt.Fprintf(t, "%s:%d\t%s\t%s\n", c.Authority, c.Code, c.Kind, c.Name)
	}
	t.Flush()
}

// explain writes what is known about one name. The error is that of resolving it or
// of making the transformer.
func explain(w io.Writer, name, to string) error {
	code, err := crs.Resolve(name)
	if err != nil {
		return err
	}
	target, err := crs.Resolve(to)
	if err != nil {
		return err
	}
	c, err := crs.Describe(code)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(label, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", label, fmt.Sprintf(format, args...))
	}
	row("name", "%s", name)
	row("code", "%d", c.Code)
	if c.Authority != "" {
		row("definition", "%s:%d %s", c.Authority, c.Code, c.Name)
	}
	row("kind", "%s", c.Kind)
	transformer, err := crs.New(code, target)
	if err != nil {
		row("engine", "none: refused")
	} else {
		row("engine", "%s (to %d)", transformer.Engine(), target)
	}
	row("service", "%s", c.Service)
	row("ballpark", "%s", ballpark(c.Service))
	if c.Accuracy > 0 {
		row("datum accuracy", "%g m (as published, to WGS 84)", c.Accuracy)
	}
	switch c.Kind {
	case crs.KindProjected:
		row("unit", "%.10g m", c.Unit)
	case crs.KindGeographic:
		row("unit", "%.10g degrees", c.Unit)
	}
	if c.HasArea {
		row("area of use", "longitude %g to %g, latitude %g to %g", c.Area.Min[0], c.Area.Max[0], c.Area.Min[1], c.Area.Max[1])
	}
	if c.HasExtent {
		row("accepted", "x %.10g to %.10g, y %.10g to %.10g", c.Extent.Min[0], c.Extent.Max[0], c.Extent.Min[1], c.Extent.Max[1])
	}
	for _, b := range c.Served {
		row("served", "x %.10g to %.10g, y %.10g to %.10g", b.Min[0], b.Max[0], b.Min[1], b.Max[1])
	}
	t.Flush()
	fmt.Fprintln(w)
	return err
}

func ballpark(s crs.Service) string {
	switch s {
	case crs.ServiceBallpark:
		return "yes: refused unless ALLOW_BALLPARK_CRS=true"
	case crs.ServiceLimited:
		return "outside the served extents: refused there"
	default:
		return "no"
	}
}
