package deploy

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// get returns a page of the container. port is one of its names, and token, if any, that of a user.
func (c *container) get(path, port, scheme, token string) (string, error) {
	number := 0
	for _, p := range c.pod.Spec.Containers[0].Ports {
		if p.Name == port {
			number = int(p.ContainerPort)
		}
	}
	request, err := http.NewRequest(http.MethodGet, scheme+"://"+net.JoinHostPort(c.ip, strconv.Itoa(number))+path, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// A probe does not verify the certificate either.
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return string(text), err
}
