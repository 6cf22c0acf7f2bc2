// Package events keeps controllers from sending the same event in every pass.
package events

// Said remembers what was last said of an object, for each of some topics. It is part of what a
// controller remembers of that object. The zero value is ready to use, by one goroutine at a time.
type Said struct{ last map[string]string }

// Is reports whether a text is what was last said about a topic.
func (s *Said) Is(topic, text string) bool {
	last, ok := s.last[topic]
	return ok && last == text
}

// Note records that a text was said about a topic.
func (s *Said) Note(topic, text string) {
	if s.last == nil {
		s.last = map[string]string{}
	}
	s.last[topic] = text
}

// News notes a text, and reports whether it was not what was said last.
func (s *Said) News(topic, text string) bool {
	news := !s.Is(topic, text)
	s.Note(topic, text)
	return news
}

// Over forgets a topic. If it comes up again, it is said again.
func (s *Said) Over(topic string) { delete(s.last, topic) }
