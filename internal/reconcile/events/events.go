// Package events prevents controllers from recording the same event in every pass.
package events

// Last remembers the last text about an object for each of several topics. It is part of a controller's state
// of the object. The zero value is ready to use. It is not safe for concurrent use.
type Last struct{ last map[string]string }

// Is reports whether a text is the last one about a topic.
func (s *Last) Is(topic, text string) bool {
	last, ok := s.last[topic]
	return ok && last == text
}

// Note records the last text about a topic.
func (s *Last) Note(topic, text string) {
	if s.last == nil {
		s.last = map[string]string{}
	}
	s.last[topic] = text
}

// News records a text, and reports whether it differs from the previous one.
func (s *Last) News(topic, text string) bool {
	news := !s.Is(topic, text)
	s.Note(topic, text)
	return news
}

// Over forgets a topic, so that its next text counts as new.
func (s *Last) Over(topic string) { delete(s.last, topic) }
