// Package vmcontroller tests several VM controllers of one cluster, each a process of its own.
package vmcontroller
