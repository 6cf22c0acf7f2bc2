// Package docs runs the commands of the documentation in local mode with simulated machines: every block marked
// "sh" of the listed pages, in order. A page must leave nothing behind.
package docs
