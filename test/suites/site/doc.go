// Package site builds the site of the documentation, and tests it in a browser.
package site
