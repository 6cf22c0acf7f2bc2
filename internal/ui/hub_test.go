package ui

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// seen is what a tab shows: the rows by ID.
type seen map[string]string

// apply applies a message as the page does.
func (s seen) apply(t *testing.T, delta Delta) {
	t.Helper()
	if delta.All {
		clear(s)
	}
	for _, id := range delta.Gone {
		delete(s, id)
	}
	for _, text := range delta.Rows {
		var row Row
		if err := json.Unmarshal(text, &row); err != nil {
			t.Fatal(err)
		}
		s[row.ID] = row.Name
	}
}

func put(h *hub, id, name string) { h.set(id, Row{ID: id, Name: name}) }

// TestHub_TabsGetChanges checks that a tab that reads every change and one that skips most of them show the same rows.
func TestHub_TabsGetChanges(t *testing.T) {
	h, fast, slow := newHub(), seen{}, seen{}
	var number int64
	read := func() {
		delta, last, _ := h.since(number)
		fast.apply(t, delta)
		number = last
	}
	put(h, "a", "one")
	put(h, "b", "one")
	first, last, _ := h.since(0)
	slow.apply(t, first)
	for _, change := range []func(){
		read,
		func() { put(h, "a", "two") }, read,
		func() { h.set("b", nil) }, read,
		func() { put(h, "c", "one") }, read,
		func() { h.set("c", nil) }, read,
		func() { put(h, "b", "again") }, read,
	} {
		change()
	}
	delta, _, _ := h.since(last)
	slow.apply(t, delta)
	want := seen{"a": "two", "b": "again"}
	if diff := cmp.Diff(want, fast); diff != "" {
		t.Errorf("the fast tab (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(want, slow); diff != "" {
		t.Errorf("the slow tab (-want +got)\n%s", diff)
	}
	if slices.Contains(delta.Gone, "b") || !slices.Contains(delta.Gone, "c") || delta.All {
		t.Errorf("the slow tab got %+v", delta)
	}
}

// TestHub_UnchangedRowIsNotSent checks that a row with the same content causes no message.
func TestHub_UnchangedRowIsNotSent(t *testing.T) {
	h := newHub()
	put(h, "a", "one")
	_, last, changed := h.since(0)
	put(h, "a", "one")
	h.set("b", nil) // does not exist
	select {
	case <-changed:
		t.Error("a change was reported")
	default:
	}
	if delta, now, _ := h.since(last); now != last || len(delta.Rows)+len(delta.Gone) > 0 {
		t.Errorf("got %+v, number %d after %d", delta, now, last)
	}
}

// TestHub_TabThatMissedRemovalsGetsAllRows checks that the memory of removed rows is limited.
func TestHub_TabThatMissedRemovalsGetsAllRows(t *testing.T) {
	h := newHub()
	put(h, "a", "one")
	_, last, _ := h.since(0)
	for i := range maxGone + 10 {
		id := fmt.Sprint("gone", i)
		put(h, id, "")
		h.set(id, nil)
	}
	if len(h.gone) != maxGone {
		t.Errorf("%d removals are remembered", len(h.gone))
	}
	delta, now, _ := h.since(last)
	if !delta.All || len(delta.Rows) != 1 || len(delta.Gone) != 0 {
		t.Errorf("got all: %t, %d rows, %d gone", delta.All, len(delta.Rows), len(delta.Gone))
	}
	if delta, _, _ := h.since(now); delta.All {
		t.Error("a current tab got all rows")
	}
}
