package main

import (
	"errors"
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"path"
	"regexp"
)

var (
	reference = regexp.MustCompile(`\s(?:href|src)=(?:"([^"]*)"|([^\s">]+))`)
	anchor    = regexp.MustCompile(`\sid=(?:"([^"]*)"|([^\s">]+))`)
)

// minPages is the minimum number of pages of the site. A site with fewer was not built completely.
const minPages = 100

// check returns an error for each link of a site that leads nowhere in the site. It does not follow links to other
// sites. Pages may not load anything from there.
func check(site fs.FS) error {
	pages, err := fs.Glob(site, "*.html")
	for _, pattern := range []string{"*/*.html", "*/*/*.html", "*/*/*/*.html"} {
		more, globErr := fs.Glob(site, pattern)
		pages, err = append(pages, more...), errors.Join(err, globErr)
	}
	if len(pages) < minPages {
		err = errors.Join(err, fmt.Errorf("the site has %d pages, want at least %d", len(pages), minPages))
	}
	return errors.Join(err, checkLinks(site, pages))
}

// checkLinks returns an error for each broken link of the pages.
func checkLinks(site fs.FS, pages []string) (err error) {
	texts, headings := map[string]string{}, map[string]map[string]bool{}
	for _, name := range pages {
		text, readErr := fs.ReadFile(site, name)
		texts[name], headings[name], err = string(text), anchors(string(text)), errors.Join(err, readErr)
	}
	for _, name := range pages {
		for _, match := range reference.FindAllStringSubmatch(texts[name], -1) {
			link, parseErr := url.Parse(html.UnescapeString(match[1] + match[2]))
			if parseErr != nil || link.Host != "" || link.Scheme != "" {
				err = errors.Join(err, parseErr)
				continue
			}
			target := name
			if link.Path != "" {
				target = path.Join(path.Dir(name), link.Path)
			}
			if info, statErr := fs.Stat(site, target); statErr != nil || info.IsDir() {
				err = errors.Join(err, fmt.Errorf("%s links to %s, which does not exist", name, link))
			} else if link.Fragment != "" && !headings[target][link.Fragment] {
				err = errors.Join(err, fmt.Errorf("%s links to %s, which has no such heading", name, link))
			}
		}
	}
	return err
}

// anchors returns the IDs of the elements of a page.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range anchor.FindAllStringSubmatch(text, -1) {
		found[html.UnescapeString(match[1]+match[2])] = true
	}
	return found
}
