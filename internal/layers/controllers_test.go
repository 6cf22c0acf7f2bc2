package layers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// TestControllers_UseTheEdge checks that every controller reconciles through package edge and uses the rate limiter of
// package expectations. With controller-runtime's rate limiter, objects that failed during an outage would not be retried
// for up to fifteen minutes after it.
func TestControllers_UseTheEdge(t *testing.T) {
	made, onEdge := map[string]int{}, map[string]bool{} // by directory
	for path, text := range sources(t, "internal") {
		directory, count := filepath.Dir(path), strings.Count(text, "ctrl.NewControllerManagedBy(")
		made[directory] += count
		onEdge[directory] = onEdge[directory] || strings.Contains(text, "edge.Reconciler[")
		if count != strings.Count(text, "RateLimiter: expectations.RateLimiter()") {
			t.Errorf("%s creates %d controllers, but not all of them use expectations.RateLimiter", path, count)
		}
	}
	controllers := 0
	for directory, count := range made {
		controllers += count
		if count > 0 && !onEdge[directory] {
			t.Errorf("%s creates a controller without edge.Reconciler", directory)
		}
	}
	if controllers == 0 {
		t.Error("no controllers found")
	}
}

// notOfObjects matches calls that would mistake the error of a webhook for a conflict of an object.
var notOfObjects = regexp.MustCompile(`apierrors\.(IsConflict|IsAlreadyExists)\(`)

// TestControllers_DistinguishWebhooksFromConflicts checks that conflicts are recognized only by package apierror, because a
// webhook may also deny a write with the status code of a conflict.
func TestControllers_DistinguishWebhooksFromConflicts(t *testing.T) {
	for _, directory := range []string{"internal/autoscaler", "internal/controllers", "internal/lifecycle", "internal/local", "internal/reconcile"} {
		for path, text := range sources(t, directory) {
			if found := notOfObjects.FindString(text); found != "" && filepath.Base(filepath.Dir(path)) != "apierror" {
				t.Errorf("%s uses %s...), which webhooks can cause; use package apierror", path, found)
			}
		}
	}
}

// sources returns the Go files below a directory, except tests, by their paths.
func sources(t *testing.T, directory string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, path := range repository.GoFiles(t, filepath.Join(root, directory)) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	if len(texts) == 0 {
		t.Errorf("no files below %s", directory)
	}
	return texts
}
