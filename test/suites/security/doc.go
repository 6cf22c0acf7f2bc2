// Package security tries what each identity may do in a real API server with the shipped roles.
package security
