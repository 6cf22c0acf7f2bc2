// Package ui serves the web page of "millwright ui".
//
// A Server watches each kind of objects once, however many tabs are open, with the permissions of one client
// configuration. It turns objects into rows, which contain only what the page shows, and sends changed rows to
// the tabs. Explanations come from package explain, and the progress of rollouts from package rollout, so the
// page has no rules of its own. Secrets and the client configuration never leave the process.
//
// The page itself is bundled from the directory ui of the repository into the directory web.
package ui
