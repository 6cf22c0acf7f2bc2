package layers

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/millwright-dev/millwright/test/support/repository"
)

// TestControllers_UseTheEdge checks that every controller begins and ends its reconciles in package edge, and has the
// rate limiter of package expectations: with controller-runtime's, objects that failed during an outage are not retried
// for up to a quarter of an hour after it.
func TestControllers_UseTheEdge(t *testing.T) {
	made, onEdge := map[string]int{}, map[string]bool{} // by folder
	for path, text := range sources(t, "internal") {
		folder, count := filepath.Dir(path), strings.Count(text, "ctrl.NewControllerManagedBy(")
		made[folder] += count
		onEdge[folder] = onEdge[folder] || strings.Contains(text, "edge.Reconciler[")
		if count != strings.Count(text, "RateLimiter: expectations.RateLimiter()") {
			t.Errorf("%s makes %d controllers, not each with expectations.RateLimiter", path, count)
		}
	}
	controllers := 0
	for folder, count := range made {
		controllers += count
		if count > 0 && !onEdge[folder] {
			t.Errorf("%s makes a controller without edge.Reconciler", folder)
		}
	}
	if controllers == 0 {
		t.Error("no controller was found")
	}
}

// notOfObjects matches what takes an error of a webhook for one about an object.
var notOfObjects = regexp.MustCompile(`apierrors\.(IsConflict|IsAlreadyExists)\(`)

// TestControllers_TellWebhooksFromConflicts checks that conflicts are recognized by package apierror: a webhook may deny a
// write with the status code of a conflict, too.
func TestControllers_TellWebhooksFromConflicts(t *testing.T) {
	for _, folder := range []string{"internal/autoscaler", "internal/controllers", "internal/lifecycle", "internal/local", "internal/reconcile"} {
		for path, text := range sources(t, folder) {
			if found := notOfObjects.FindString(text); found != "" && filepath.Base(filepath.Dir(path)) != "apierror" {
				t.Errorf("%s uses %s...), which webhooks can cause; use package apierror", path, found)
			}
		}
	}
}

// sources returns the Go files below a folder, but for tests, by their paths.
func sources(t *testing.T, folder string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, path := range repository.GoFiles(t, filepath.Join(root, folder)) {
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
		t.Errorf("no files below %s", folder)
	}
	return texts
}
