package image

import (
	"context"
	"errors"
	"net"
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
	must(t, os.WriteFile(filepath.Join(images, "new", "kernel"), []byte("kernel\x00"), 0o600))
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
	private := serveBy(t, func(w http.ResponseWriter, _ *http.Request) {
		asked = true
		_, _ = w.Write([]byte("kernel"))
	})
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
		"[fd00:ec2::254%eth0]:80": false, "[fd00:ec2::23]:80": false, "[fd20:ce::254]:80": false, "[fd00:c1::a9fe:a9fe]:80": false,
		"[fd00:42::42]:80": false, "[fd00:a9fe:a9fe::1]:80": false, "0.1.2.3:80": false, "[64:ff9b::a9fe:a9fe]:80": false,
		"[64:ff9b:1::7f00:1]:80": false, "[::7f00:1]:80": false, "[::ffff:0:7f00:1]:80": false, "[2002:a9fe:a9fe::1]:80": false,
		"[fd00::1]:80": true, "100.64.0.1:80": true, "[64:ff9b::808:808]:80": true,
	}
	for server, want := range tests {
		if got := (Access{}).mayDownload(netip.MustParseAddrPort(server)); got != want {
			t.Errorf("mayDownload(%s) = %t, want %t", server, got, want)
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

// A proxy does not download from servers that this host must not download from, and it is not even asked to.
func TestAccess_Proxy(t *testing.T) {
	var requested []string
	proxy := serveBy(t, func(w http.ResponseWriter, r *http.Request) {
		requested = append(requested, r.Method+" "+r.Host)
		if r.Host == "redirecting.example" {
			http.Redirect(w, r, "http://169.254.169.254/latest/user-data", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte{0}) // an empty file would be rejected
	})
	at := netip.MustParseAddrPort(strings.Split(proxy, "/")[2])
	for _, variable := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		t.Setenv(variable, "http://"+at.String())
	}
	names := map[string]string{
		"images.example": "192.0.2.1", "redirecting.example": "10.0.0.1", "metadata.example": "169.254.169.254", "own.example": "::1",
		"both.example": "192.0.2.1 fd00:ec2::254", "allowed.example": "127.0.0.9",
	}
	lookup := func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if names[host] == "" {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		var addresses []netip.Addr
		for _, address := range strings.Fields(names[host]) {
			addresses = append(addresses, netip.MustParseAddr(address))
		}
		return addresses, nil
	}
	for target, want := range map[string]string{
		"http://images.example/disk":      "GET images.example",
		"https://images.example/disk":     "CONNECT images.example:443",
		"http://192.0.2.1/disk":           "GET 192.0.2.1",
		"http://10.0.0.1/disk":            "GET 10.0.0.1",
		"http://unknown.example/disk":     "GET unknown.example",
		"http://allowed.example:8080/":    "GET allowed.example:8080",
		"http://allowed.example/":         "",
		"http://127.0.0.9:8080/":          "", // requested without the proxy, and nothing listens
		"http://redirecting.example/disk": "GET redirecting.example",
		"http://metadata.example/":        "",
		"https://metadata.example/":       "",
		"http://METADATA.example./":       "",
		"http://own.example/":             "",
		"http://both.example/":            "",
		"http://169.254.169.254/":         "",
		"https://169.254.169.254/":        "",
		"http://169.254.169.254./":        "",
		"http://[64:ff9b::a9fe:a9fe]/":    "",
		"http://[fe80::1%25eth0]/":        "",
		"http://[::ffff:a9fe:a9fe]/":      "",
		"http://2852039166/":              "", // 169.254.169.254
		"http://0xa9fea9fe/":              "",
		"http://169.254.43518/":           "",
		"http://0251.0376.0251.0376/":     "",
		"http://0xa9.0xfe.0xa9.0xFE./":    "",
		"http://①⑥⑨.②⑤④.①⑥⑨.②⑤④/":         "",
		"http://169。254。169。254/":         "",
		"http://169.254.169.254;x/":       "",
		"http://169.254.169.254%25x/":     "",
		"http://LocalHost./":              "",
		"http://any.localhost/":           "",
	} {
		requested = nil
		source := Source{URL: target}
		options := Options{Access: Access{Servers: []netip.AddrPort{at, netip.MustParseAddrPort("127.0.0.9:8080")}}, RetryTimeout: -1}
		j, err := newJob("file", source, options)
		must(t, err)
		j.lookup = lookup
		err = j.fetch(t.Context(), filepath.Join(t.TempDir(), "kernel"))
		if got := strings.Join(requested, ", "); got != want {
			t.Errorf("%s: the proxy was asked for %q, want %q; error = %v", target, got, want, err)
		}
		refused := want == "" && !strings.Contains(target, ":8080") || strings.Contains(target, "redirecting")
		if errors.Is(err, Rejected) != refused {
			t.Errorf("%s: error = %v", target, err)
		}
	}
}
