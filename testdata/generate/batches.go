package main

import (
	"fmt"
	"strings"
	"time"
)

// batch is one run of a pipeline that left dead letters.
type batch struct {
	id      string
	started time.Time
	pace    time.Duration // between two failures
	named   bool          // its records carry ids
	layer   layer
	first   int // where in the layer it starts
	count   int
	faults  []share
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t
}

// The runs of one week. The first one met the assessor's new export and is the
// one that somebody must look at: more than one record in twenty is past help.
// The second failed on forty of the same parcels again, with newer attributes.
var batches = []batch{
	{
		id: "parcels-2026-03-02T04", started: at("2026-03-02T04:00:11-08:00"), pace: 380 * time.Millisecond, named: true,
		layer: parcels, count: 780,
		faults: []share{
			{badYear, 8}, {badMoney, 4}, {badDate, 3}, {badFlag, 2}, {oddYear, 4}, {oddNumber, 3},
			{noLayer, 2}, {nullLayer, 1}, {otherLayer, 2}, {missingText, 6},
			{noGeometry, 3}, {sliver, 2}, {outAndBack, 1}, {emptyRings, 1}, {nullVertex, 1}, {noCoordinates, 1},
			{noCRS, 3}, {otherCRSInside, 1}, {feetAsMetres, 3}, {northingFirst, 2},
			{cutOff, 3}, {twoIDs, 1}, {nul, 2}, {noFeature, 1}, {halfLine, 1},
			{openRing, 8}, {clockwise, 12}, {repeatedVertex, 4}, {bowTie, 5}, {spike, 3}, {overlap, 3},
		},
	},
	{
		id: "parcels-2026-03-03T04", started: at("2026-03-03T04:00:09-08:00"), pace: 410 * time.Millisecond, named: true,
		layer: parcels, first: 740, count: 300,
		faults: []share{{badYear, 2}, {badMoney, 1}, {oddYear, 1}, {noGeometry, 1}},
	},
	{
		id: "condo-conversions-2026-03-03", started: at("2026-03-03T09:12:40-08:00"), pace: 95 * time.Millisecond, named: true,
		layer: condominiums, count: 160,
	},
	{
		id: "streets-2026q1", started: at("2026-03-02T22:30:00Z"), pace: 1900 * time.Millisecond,
		layer: centrelines, count: 240,
		faults: []share{{oldDatum, 4}, {oneVertex, 1}, {arc, 2}, {badSpeed, 2}},
	},
	{
		id: "addresses-2026-03-02", started: at("2026-03-02T11:05:31.250Z"), pace: 700 * time.Millisecond, named: true,
		layer: addresses, count: 400,
		faults: []share{
			{latitudeFirst, 4}, {beyondLimits, 2}, {northPole, 1}, {inventedCRS, 3}, {notANumber, 2}, {nullPosition, 1},
			{textPosition, 1}, {emptyPoint, 1}, {latin1, 2}, {badZIP, 2}, {logLine, 1},
		},
	},
	{
		id: "hydrants-survey-2026-02-27", started: at("2026-02-27T16:44:02+00:00"), pace: 40 * time.Second,
		layer: hydrants, count: 120,
		faults: []share{{noData, 2}, {badFlow, 1}, {noCRS, 1}},
	},
	{
		id: "zoning-édition-2026-03-04", started: at("2026-03-04T10:00:00-08:00"), pace: 65 * time.Second, named: true,
		layer: zoning, count: 110,
		faults: []share{{curvedShell, 1}, {bareGeometry, 1}, {badHeight, 1}, {strayHole, 1}},
	},
	{
		id: "permits/2026/week=10", started: at("2026-03-05T18:20:00Z"), pace: 11 * time.Second, named: true,
		layer: permits, count: 90,
		faults: []share{{lostSign, 2}, {twoIDs, 1}},
	},
}

// letter is one line of the failure file and what must become of it.
type letter struct {
	draft
	batch string
	line  string
}

// write makes the batch's records. seed sets it apart from the other batches.
func (b batch) write(seed uint64) []letter {
	r := newRandom(seed)
	var faults []fault
	for _, s := range b.faults {
		for range s.count {
			faults = append(faults, s.fault)
		}
	}
	shuffle(r, faults)
	letters := make([]letter, b.count)
	for i := range letters {
		d := b.layer(r, b.first+i)
		// The k-th of n faults stands in the middle of the k-th n-th of the batch.
		if n := len(faults); n > 0 && (i*n)/b.count != ((i+1)*n)/b.count {
			faults[(i*n)/b.count](r, &d)
		}
		dlqID := ""
		if b.named {
			dlqID = randomUUID(r)
		}
		seen := b.started.Add(time.Duration(i)*b.pace + time.Duration(r.below(1000))*time.Microsecond)
		letters[i] = letter{draft: d, batch: b.id, line: d.encodeRecord(b.id, dlqID, seen.Format(time.RFC3339Nano))}
	}
	return letters
}

// failureFile is every batch's records, as one object of the inbox would hold them.
func failureFile() []letter {
	var letters []letter
	for i, b := range batches {
		letters = append(letters, b.write(uint64(2026+i))...)
	}
	return letters
}

// randomUUID is a version 4 UUID (RFC 9562).
func randomUUID(r random) string {
	hi, lo := r.words.Uint64(), r.words.Uint64()
	hi = hi&^0xf000 | 0x4000
	lo = lo&^(0xc<<60) | 0x8<<60
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", hi>>32, hi>>16&0xffff, hi&0xffff, lo>>48, lo&0xffffffffffff)
}

// roads is a GeoJSON FeatureCollection as GDAL writes it, with the CRS of all its
// features at its top.
func roads() string {
	r := newRandom(1)
	var b strings.Builder
	b.WriteString("{\n\"type\": \"FeatureCollection\",\n\"name\": \"street_centrelines\",\n\"crs\": ")
	b.Write(gdal.encode(nil, namedCRS("urn:ogc:def:crs:EPSG::2227")))
	b.WriteString(",\n\"features\": [\n")
	for i := range 36 {
		d := centrelines(r, i)
		if i > 0 {
			b.WriteString(",\n")
		}
		b.WriteString(d.encodeFeature())
	}
	b.WriteString("\n]\n}\n")
	return b.String()
}

// hydrantSequence is a GeoJSON text sequence (RFC 8142) in degrees.
func hydrantSequence() string {
	r := newRandom(2)
	var b strings.Builder
	for i := range 24 {
		d := hydrants(r, i)
		t := tracts[i/16%len(tracts)]
		d.shape = t.position(lonlat, corner(i*5%blocksInPlan).plus(-100, -100))
		fmt.Fprintf(&b, "\x1e%s\n", d.encodeFeature())
	}
	return b.String()
}
