package site

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millwright-dev/millwright/test/support/browser"
	"github.com/millwright-dev/millwright/test/support/repository"
	"github.com/millwright-dev/millwright/test/support/tier"
)

const (
	root = "../../.."
	axe  = root + "/ui/vendor/axe-core/axe.min.js"
)

// build builds the site in a new directory. "make docs" also checks all links.
func build(t *testing.T) string {
	t.Helper()
	repository.DependOnAllFiles()
	directory := t.TempDir()
	command := exec.CommandContext(t.Context(), "make", "--no-print-directory", "docs", "SITE="+directory)
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	return directory
}

// read returns the contents of all files below a directory.
func read(t *testing.T, directory string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(directory, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		files[strings.TrimPrefix(name, directory)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// serve serves the site, and records paths that do not exist.
func serve(t *testing.T, directory string) (url string, missing func() string) {
	t.Helper()
	var mu sync.Mutex
	var paths bytes.Buffer
	files := http.FileServer(http.Dir(directory))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(filepath.Join(directory, filepath.FromSlash(r.URL.Path))); err != nil {
			mu.Lock()
			paths.WriteString(r.URL.Path + "\n")
			mu.Unlock()
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		return paths.String()
	}
}

// TestSite_BuildsAreEqual checks that two builds have the same files.
func TestSite_BuildsAreEqual(t *testing.T) {
	tier.All(t)
	if diff := cmp.Diff(read(t, build(t)), read(t, build(t))); diff != "" {
		t.Errorf("two builds differ:\n%s", diff)
	}
}

// TestSite_IsAccessible checks the index, pages with long tables, diagrams, pictures and code, and the search.
func TestSite_IsAccessible(t *testing.T) {
	p := browser.Open(t)
	url, missing := serve(t, build(t))
	for _, page := range []string{
		"index", "get-started/local-mode", "concepts/rollout", "concepts/virtual-machines", "tasks/index", "tasks/ui", "drivers/vm",
		"reference/metrics", "reference/api/machine", "reference/cli/index", "contributing/architecture", "design/0067-ui",
	} {
		p.Navigate(url + "/" + page + ".html")
		p.Await(`document.querySelector("h1") && !document.querySelector(".search").hidden`)
		p.WantAccessible(axe, page)
		p.Resize(1440, 1000, len(page)%2 == 0)
		p.Screenshot(t, strings.ReplaceAll(page, "/", "-"))
	}

	// Text is as in the pages, so that flags can be copied.
	p.Navigate(url + "/reference/api/machine.html")
	p.Await(`document.body.innerText.includes("(flag --machine-creation-timeout)")`)

	p.Navigate(url + "/reference/cli/index.html")
	p.Press("/")
	p.Fill(".search input", "drain timeout")
	p.Await(`document.querySelectorAll(".search li a").length > 3`)
	p.WantAccessible(axe, "search")
	p.Screenshot(t, "search")
	p.Fill(".search input", "drain nodes respect budgets")
	p.Await(`document.querySelector(".search li a")?.innerText === "Drain nodes and respect budgets"`)
	browser.Evaluate[any](p, `document.querySelector(".search").requestSubmit()`)
	p.Await(`location.pathname === "/tasks/drain-and-budgets.html"`)
	p.Fill(".search input", "xylophone")
	browser.Evaluate[any](p, `document.querySelector(".search input").focus()`)
	p.Await(`document.querySelector(".search p").innerText === "No page has all of these words."`)

	for _, problem := range p.Problems() {
		t.Errorf("a page reports: %s", problem)
	}
	if paths := missing(); paths != "" {
		t.Errorf("pages requested what does not exist:\n%s", paths)
	}
}
