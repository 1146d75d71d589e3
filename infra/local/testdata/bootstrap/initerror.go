package main

import (
	"bytes"
	"net/http"
	"os"
)

func postInitError(body []byte) error {
	r, err := http.Post("http://"+os.Getenv("AWS_LAMBDA_RUNTIME_API")+"/2018-06-01/runtime/init/error", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	return r.Body.Close()
}
