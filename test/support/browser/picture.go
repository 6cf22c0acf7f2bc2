package browser

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fonts is the directory of the fonts that "make chromium" installs.
const fonts = "/usr/share/fonts/truetype/dejavu"

// fontConfig makes the browser use only these fonts, and render them in the same way on each host.
const fontConfig = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>` + fonts + `</dir>
  <cachedir>%s</cachedir>
  <selectfont>
    <acceptfont><glob>*/DejaVuSans.ttf</glob><glob>*/DejaVuSans-Bold.ttf</glob><glob>*/DejaVuSansMono.ttf</glob><glob>*/DejaVuSansMono-Bold.ttf</glob></acceptfont>
    <rejectfont><glob>*</glob></rejectfont>
  </selectfont>
  <alias><family>sans-serif</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>system-ui</family><prefer><family>DejaVu Sans</family></prefer></alias>
  <alias><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
  <match target="font">
    <edit name="antialias" mode="assign"><bool>true</bool></edit>
    <edit name="hinting" mode="assign"><bool>false</bool></edit>
    <edit name="rgba" mode="assign"><const>none</const></edit>
  </match>
</fontconfig>
`

func hasFonts() bool {
	_, err := os.Stat(filepath.Join(fonts, "DejaVuSans.ttf"))
	return err == nil
}

// fixedFonts returns the environment of a browser that uses only the fonts of "make chromium". Without them, it uses those of
// the host.
func fixedFonts(t testing.TB, dir string) []string {
	t.Helper()
	if !hasFonts() {
		return nil
	}
	file := filepath.Join(dir, "fonts.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, fontConfig, filepath.Join(dir, "fonts")), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"FONTCONFIG_FILE=" + file}
}

// stopped stops the clock of a document. Timers that limit how long something may take, at least 30 seconds, do not expire.
const stopped = `{
	Date.now = () => 1e12;
	const set = window.setTimeout;
	window.setTimeout = (run, after, ...rest) => (after >= 30_000 ? 0 : set(run, after, ...rest));
}`

// StopClock stops the clock of documents that are loaded from now on, and sets their time zone to UTC and their language to
// English, so that pictures of them are the same in each run, however long it takes. Short timers continue. Without the fonts
// that "make chromium" installs, it skips the test.
func (p *Page) StopClock() {
	p.t.Helper()
	if !hasFonts() {
		p.t.Skip(`the fonts of pictures are not installed; as root, "make chromium" installs them`)
	}
	p.call("Emulation.setTimezoneOverride", map[string]any{"timezoneId": "UTC"}, nil)
	p.call("Emulation.setLocaleOverride", map[string]any{"locale": "en-US"}, nil)
	p.call("Emulation.setScrollbarsHidden", map[string]any{"hidden": true}, nil)
	p.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": stopped}, nil)
}

// Picture returns a picture of the page as PNG. It repeats until two successive pictures are equal, because the browser may still
// be drawing changes.
func (p *Page) Picture() []byte {
	p.t.Helper()
	before := p.shoot()
	for deadline := time.Now().Add(Timeout); time.Now().Before(deadline); {
		Evaluate[any](p, `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(null))))`)
		now := p.shoot()
		if bytes.Equal(before, now) {
			return now
		}
		before = now
	}
	p.t.Fatalf("the page still changes after %s", Timeout)
	return nil
}
