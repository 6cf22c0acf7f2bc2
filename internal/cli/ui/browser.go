package ui

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// isLoopback reports whether browsers resolve a host name to the loopback address on their own.
func isLoopback(host string) bool {
	if address := net.ParseIP(host); address != nil {
		return address.IsLoopback() && address.To4() != nil
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") && !strings.ContainsAny(host, "/?#@: ")
}

// openBrowser opens a link in the browser of the desktop, if there is one. The link is passed in a file that only the user
// can read, because other users can read the arguments of processes. Problems are printed: the user can open the link.
// It returns the process, which is nil if none was started, and a function that removes the file.
func openBrowser(link string, messages io.Writer) (started *exec.Cmd, remove func()) {
	opener, err := exec.LookPath("xdg-open")
	if err != nil || os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return nil, func() {}
	}
	file, err := writeLink(link)
	if err != nil {
		fmt.Fprintf(messages, "Cannot open a browser: %v.\n", err)
		return nil, func() {}
	}
	remove = func() { _ = os.Remove(file) } // the link no longer works
	command := exec.Command(opener, (&url.URL{Scheme: "file", Path: file}).String())
	if err := command.Start(); err != nil {
		fmt.Fprintf(messages, "Cannot open a browser: %v.\n", err)
		return nil, remove
	}
	return command, remove
}

// writeLink writes a page that leads to the link.
func writeLink(link string) (path string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	directory := filepath.Join(cache, "millwright")
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return "", err
	}
	file, err := os.CreateTemp(directory, "ui-*.html") // with mode 0600
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintf(file, `<!doctype html><meta http-equiv="refresh" content="0;url=%s"><title>Millwright</title>`, link)
	if closed := file.Close(); err == nil {
		err = closed
	}
	return file.Name(), err
}
