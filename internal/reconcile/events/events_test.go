package events

import "testing"

// TestLast_NothingIsReportedTwice checks that a text is reported again only after it changed or the topic was over.
func TestLast_NothingIsReportedTwice(t *testing.T) {
	t.Parallel()
	var last Last
	steps := []struct {
		topic, text string
		over, news  bool
	}{
		{topic: "node", text: "", news: true},
		{topic: "node", text: ""},
		{topic: "node", text: "taken", news: true},
		{topic: "node", text: "taken"},
		{topic: "labels", text: "taken", news: true},
		{topic: "node", text: "gone", news: true},
		{topic: "node", text: "taken", news: true},
		{topic: "node", text: "taken", over: true, news: true},
		{topic: "labels", text: "taken"},
	}
	for i, step := range steps {
		if step.over {
			last.Over(step.topic)
		}
		if got := last.News(step.topic, step.text); got != step.news {
			t.Errorf("step %d: News(%q, %q) = %t", i, step.topic, step.text, got)
		}
	}
}

// TestLast_UnsentEventStaysNew checks that a text counts as sent only once Note was called, so that a failed event
// is retried.
func TestLast_UnsentEventStaysNew(t *testing.T) {
	t.Parallel()
	var last Last
	for range 2 {
		if last.Is("node", "taken") {
			t.Error("Is marked the text as sent")
		}
	}
	last.Note("node", "taken")
	if !last.Is("node", "taken") {
		t.Error("a noted text counts as new")
	}
}
