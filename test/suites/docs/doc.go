// Package docs runs what the documentation tells users to type, in local mode with
// simulated machines: every block marked "sh" of the pages listed, in its order. A page
// must leave nothing behind.
package docs
