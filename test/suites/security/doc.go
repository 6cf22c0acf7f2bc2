// Package security tests the permissions of each identity with a real API server and the shipped roles.
package security
