package image

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// File URLs may name only files below the directory of images.
func TestAccess_FileURLs(t *testing.T) {
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	must(t, os.MkdirAll(filepath.Join(images, "new"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("secret"), 0o600))
	must(t, os.WriteFile(filepath.Join(images, "new", "kernel"), []byte("kernel"), 0o600))
	for name, target := range map[string]string{
		"current": "new", "out": "../secret", "absolute": filepath.Join(dir, "secret"), "parent": "..",
	} {
		must(t, os.Symlink(target, filepath.Join(images, name)))
	}
	must(t, os.Symlink("images", filepath.Join(dir, "link")))
	tests := map[string]struct {
		files, path string
		want        Kind // empty if it is fetched
	}{
		"below":                             {images, images + "/new/kernel", ""},
		"link within the directory":         {images, images + "/current/kernel", ""},
		"the directory is a link":           {dir + "/link", dir + "/link/new/kernel", ""},
		"not allowed":                       {"", images + "/new/kernel", Rejected},
		"not allowed, a system file":        {"", "/etc/passwd", Rejected},
		"outside":                           {images, dir + "/secret", Rejected},
		"a system file":                     {images, "/etc/passwd", Rejected},
		"dots":                              {images, images + "/../secret", Rejected},
		"encoded dots":                      {images, images + "/%2e%2e/secret", Rejected},
		"name with the directory as prefix": {images, images + "2/kernel", Rejected},
		"the directory itself":              {images, images, Rejected},
		"a relative link":                   {images, images + "/out", Unavailable},
		"an absolute link":                  {images, images + "/absolute", Unavailable},
		"link in the path":                  {images, images + "/parent/secret", Unavailable},
		"missing":                           {images, images + "/other", Unavailable},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			target := t.TempDir()
			source, options := Source{URL: "file://" + test.path}, Options{Access: Access{Files: test.files}, RetryTimeout: -1}
			for _, write := range []func() error{
				func() error { return Fetch(t.Context(), source, filepath.Join(target, "kernel"), options) },
				func() error {
					return WriteDisk(t.Context(), source, Target{Path: filepath.Join(target, "disk.img")}, options)
				},
			} {
				err := write()
				if test.want == "" && err != nil || test.want != "" && !errors.Is(err, test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
			}
			if test.want != "" {
				wantFiles(t, target)
			}
		})
	}
}

// Servers on the loopback interface are not used, not even after a redirect, unless they are explicitly allowed.
func TestAccess_LoopbackServers(t *testing.T) {
	asked := false
	private := serveBy(t, func(w http.ResponseWriter, _ *http.Request) { asked = true })
	at := netip.MustParseAddrPort(strings.Split(private, "/")[2])
	redirecting := redirectTo(t, private)
	other := netip.MustParseAddrPort(strings.Split(redirecting, "/")[2])
	tests := map[string]struct {
		url     string
		servers []netip.AddrPort
		asks    bool
	}{
		"allowed":              {private, []netip.AddrPort{at}, true},
		"all ports allowed":    {private, []netip.AddrPort{netip.AddrPortFrom(at.Addr(), 0)}, true},
		"not allowed":          {private, nil, false},
		"another port allowed": {private, []netip.AddrPort{other}, false},
		"by name":              {strings.Replace(private, "127.0.0.1", "localhost", 1), nil, false},
		"as IPv6":              {strings.Replace(private, "127.0.0.1", "[::ffff:127.0.0.1]", 1), nil, false},
		"unspecified":          {strings.Replace(private, "127.0.0.1", "0.0.0.0", 1), nil, false},
		"redirected":           {redirecting, []netip.AddrPort{other}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			asked = false
			options := Options{Access: Access{Servers: test.servers}, RetryTimeout: -1}
			err := Fetch(t.Context(), Source{URL: test.url}, filepath.Join(t.TempDir(), "kernel"), options)
			if asked != test.asks || test.asks && err != nil || !test.asks && !errors.Is(err, Rejected) {
				t.Errorf("requested = %t, want %t; error = %v", asked, test.asks, err)
			}
		})
	}
}

func TestAccess_ServerAddresses(t *testing.T) {
	tests := map[string]bool{
		"192.0.2.1:80": true, "10.0.0.1:80": true, "[2001:db8::1]:443": true,
		"127.0.0.1:80": false, "127.1.2.3:80": false, "[::1]:80": false, "0.0.0.0:80": false, "[::]:80": false,
		"169.254.169.254:80": false, "[fe80::1%eth0]:80": false, "[fd00:ec2::254]:80": false,
		"100.100.100.200:80": false, "168.63.129.16:80": false, "[::ffff:169.254.169.254]:80": false,
	}
	for server, want := range tests {
		if got := (Access{}).mayDownload(netip.MustParseAddrPort(server)); got != want {
			t.Errorf("refusedAddress(%s) = %t, want %t", server, got, want)
		}
	}
	servers, err := ParseServers("127.0.0.1:80,::1")
	must(t, err)
	access := Access{Servers: servers}
	for server, want := range map[string]bool{"127.0.0.1:80": true, "127.0.0.1:81": false, "[::1]:9": true} {
		if got := access.mayDownload(netip.MustParseAddrPort(server)); got != want {
			t.Errorf("mayDownload(%s) with %v = %t, want %t", server, servers, got, want)
		}
	}
	for _, wrong := range []string{"localhost:80", "127.0.0.1:", "127.0.0.1:80:80"} {
		if _, err := ParseServers(wrong); err == nil {
			t.Errorf("%q is accepted", wrong)
		}
	}
}
