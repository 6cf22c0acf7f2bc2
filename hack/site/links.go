package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"

	"golang.org/x/net/html"
)

// minPages is the minimum number of pages of the site. A site with fewer was not built completely.
const minPages = 100

// check returns an error for each link of a site that leads nowhere in the site, and for each part of a page that is loaded
// from another site. It does not follow links to other sites.
func check(site fs.FS) error {
	var pages []string
	err := fs.WalkDir(site, ".", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".html" {
			pages = append(pages, name)
		}
		return err
	})
	if len(pages) < minPages {
		err = errors.Join(err, fmt.Errorf("the site has %d pages, want at least %d", len(pages), minPages))
	}
	return errors.Join(err, checkLinks(site, pages))
}

// document is what links of a page lead to, and where they are.
type document struct {
	ids map[string]bool
	// links are the destinations of links, and parts are the URLs of what the page loads.
	links, parts []string
}

// checkLinks returns an error for each broken link of the pages, and for each part of another site.
func checkLinks(site fs.FS, pages []string) (err error) {
	documents := map[string]document{}
	for _, name := range pages {
		text, readErr := fs.ReadFile(site, name)
		documents[name] = parse(string(text))
		err = errors.Join(err, readErr)
	}
	for _, name := range pages {
		for _, part := range documents[name].parts {
			if link, parseErr := url.Parse(part); parseErr != nil || link.Host != "" || link.Scheme != "" {
				err = errors.Join(err, parseErr, fmt.Errorf("%s loads %s from another site", name, part))
			} else {
				err = errors.Join(err, checkLink(site, documents, name, link))
			}
		}
		for _, destination := range documents[name].links {
			if link, parseErr := url.Parse(destination); parseErr != nil || link.Host == "" && link.Scheme == "" {
				err = errors.Join(err, parseErr, checkLink(site, documents, name, link))
			}
		}
	}
	return err
}

// checkLink returns an error if a link of a page leads nowhere. link is nil if it could not be parsed.
func checkLink(site fs.FS, documents map[string]document, name string, link *url.URL) error {
	if link == nil {
		return nil
	}
	target := name
	if link.Path != "" {
		target = path.Join(path.Dir(name), link.Path)
	}
	if info, err := fs.Stat(site, target); err != nil || info.IsDir() {
		return fmt.Errorf("%s links to %s, which does not exist", name, link)
	}
	if link.Fragment != "" && !documents[target].ids[link.Fragment] {
		return fmt.Errorf("%s links to %s, which has no such heading", name, link)
	}
	return nil
}

// parse finds the IDs, links and parts of a page.
func parse(text string) document {
	d := document{ids: map[string]bool{}}
	for tokens := html.NewTokenizer(strings.NewReader(text)); tokens.Next() != html.ErrorToken; {
		token := tokens.Token()
		for _, attribute := range token.Attr {
			switch key := attribute.Key; {
			case key == "id":
				d.ids[attribute.Val] = true
			case key == "href" && token.Data == "a":
				d.links = append(d.links, attribute.Val)
			case key == "href" || key == "xlink:href" || key == "src" || key == "data":
				d.parts = append(d.parts, attribute.Val)
			}
		}
	}
	return d
}
