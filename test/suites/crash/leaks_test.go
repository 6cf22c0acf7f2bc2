package crash

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// leaks searches for secret values where they do not belong.
type leaks struct {
	mu     sync.Mutex
	values [][]byte
	found  []string
}

// secret registers a value that must not leak, verbatim or in base64.
func (l *leaks) secret(value []byte) {
	if len(value) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.values = append(l.values, value, []byte(base64.StdEncoding.EncodeToString(value)))
}

// token registers the secret of a bootstrap token that is being written.
func (l *leaks) token(body []byte) {
	secret := &corev1.Secret{}
	if json.Unmarshal(body, secret) == nil && secret.Type == corev1.SecretTypeBootstrapToken {
		l.secret(secret.Data["token-secret"])
	}
}

// search searches a text that many users may be able to read.
func (l *leaks) search(where string, text []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, value := range l.values {
		if bytes.Contains(text, value) {
			l.found = append(l.found, fmt.Sprintf("a secret value is in %s", where))
			return
		}
	}
}

func (l *leaks) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found
}
