package ui

import (
	"bytes"
	"encoding/json"
	"slices"
	"sync"
)

// maxGone limits the removed rows that are remembered for tabs that have not learned of them. A tab that missed more
// gets all rows again.
const maxGone = 20_000

// hub holds the rows that the tabs show, by ID. Each change has a number, so that a tab gets the rows that changed since
// its last number. A slow tab skips intermediate states and needs no queue.
type hub struct {
	mu   sync.Mutex
	last int64
	rows map[string]row
	// gone are the removed rows, the oldest first, and forgot is the number of the latest one that is no longer listed.
	gone   []removal
	forgot int64
	// changed is closed on the next change.
	changed chan struct{}
}

type row struct {
	number int64
	text   json.RawMessage
}

type removal struct {
	number int64
	id     string
}

// Delta is a message to a tab: the rows that changed since the one before.
type Delta struct {
	// All reports whether the rows are complete, so that the tab drops all others.
	All bool `json:"all,omitempty"`
	// Rows have the fields kind and id.
	Rows []json.RawMessage `json:"rows,omitempty"`
	// Gone are the IDs of removed rows.
	Gone []string `json:"gone,omitempty"`
	// Now is the time of the server in milliseconds since 1970, because the clock of the browser can be wrong.
	Now int64 `json:"now"`
}

func newHub() *hub { return &hub{rows: map[string]row{}, changed: make(chan struct{})} }

// set adds or changes a row. A nil value removes it.
func (h *hub) set(id string, value any) {
	var text []byte
	if value != nil {
		text, _ = json.Marshal(value) // rows contain only strings, numbers and times
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	before, exists := h.rows[id]
	if exists == (text != nil) && bytes.Equal(before.text, text) {
		return
	}
	h.last++
	if text != nil {
		h.rows[id] = row{h.last, text}
	} else {
		delete(h.rows, id)
		h.gone = append(h.gone, removal{h.last, id})
	}
	if excess := len(h.gone) - maxGone; excess > 0 {
		h.forgot = h.gone[excess-1].number
		h.gone = slices.Delete(h.gone, 0, excess)
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

// since returns what changed after a number, the number of the latest change, and a channel that is closed on the next
// one. For the number 0, it returns all rows.
func (h *hub) since(number int64) (Delta, int64, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delta := Delta{All: number == 0 || number < h.forgot}
	for _, row := range h.rows {
		if delta.All || row.number > number {
			delta.Rows = append(delta.Rows, row.text)
		}
	}
	if !delta.All {
		for i := len(h.gone) - 1; i >= 0 && h.gone[i].number > number; i-- {
			// A row that exists again is among the rows.
			if _, exists := h.rows[h.gone[i].id]; !exists {
				delta.Gone = append(delta.Gone, h.gone[i].id)
			}
		}
	}
	return delta, h.last, h.changed
}
