package dashboard

import (
	"fmt"
	"net/url"
	"slices"

	"sigs.k8s.io/yaml"
)

// Target is a metrics endpoint.
type Target struct {
	// Job is the role of the component, which becomes the job label.
	Job string
	// Instance is the name of the component, which becomes the instance label.
	Instance string
	// URL is the URL of the endpoint.
	URL string
}

// Credentials are the certificates and the key, in PEM, with which Prometheus scrapes https targets.
type Credentials struct{ CA, Cert, Key []byte }

// Prometheus returns a Prometheus configuration that scrapes the targets of a cluster every
// second. The configuration contains the credentials, including the private key.
func Prometheus(cluster string, targets []Target, credentials Credentials) ([]byte, error) {
	type static struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	type scrape struct {
		Job     string            `json:"job_name"`
		Scheme  string            `json:"scheme"`
		TLS     map[string]string `json:"tls_config,omitempty"`
		Statics []static          `json:"static_configs"`
	}
	var jobs []scrape
	for _, t := range targets {
		endpoint, err := url.Parse(t.URL)
		if err != nil {
			return nil, fmt.Errorf("metrics endpoint of %s: %w", t.Instance, err)
		}
		i := slices.IndexFunc(jobs, func(s scrape) bool { return s.Job == t.Job })
		if i < 0 {
			i = len(jobs)
			jobs = append(jobs, scrape{Job: t.Job, Scheme: endpoint.Scheme})
			if endpoint.Scheme == "https" {
				jobs[i].TLS = map[string]string{"ca": string(credentials.CA), "cert": string(credentials.Cert), "key": string(credentials.Key)}
			}
		}
		jobs[i].Statics = append(jobs[i].Statics, static{
			Targets: []string{endpoint.Host}, Labels: map[string]string{ClusterLabel: cluster, "instance": t.Instance},
		})
	}
	data, err := yaml.Marshal(map[string]any{
		"global":         map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s"},
		"scrape_configs": jobs,
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the Prometheus configuration: %w", err)
	}
	return data, nil
}
