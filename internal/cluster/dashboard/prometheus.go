package dashboard

import (
	"fmt"
	"net/url"
	"slices"

	"sigs.k8s.io/yaml"
)

// Target is a page with metrics.
type Target struct {
	// Job is the label by which Prometheus tells components apart: their role.
	Job string
	// Instance is the component's name, and URL where its page is.
	Instance, URL string
}

// Credentials are those with which pages are read by https: certificates and a key, in PEM.
type Credentials struct{ CA, Cert, Key []byte }

// Prometheus is a configuration for Prometheus that reads the pages of a cluster each
// second, which is what the plots of experiments do. The credentials are in it.
func Prometheus(cluster string, targets []Target, with Credentials) ([]byte, error) {
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
		at, err := url.Parse(t.URL)
		if err != nil {
			return nil, fmt.Errorf("the page of %s: %w", t.Instance, err)
		}
		i := slices.IndexFunc(jobs, func(s scrape) bool { return s.Job == t.Job })
		if i < 0 {
			i = len(jobs)
			jobs = append(jobs, scrape{Job: t.Job, Scheme: at.Scheme})
			if at.Scheme == "https" {
				jobs[i].TLS = map[string]string{"ca": string(with.CA), "cert": string(with.Cert), "key": string(with.Key)}
			}
		}
		jobs[i].Statics = append(jobs[i].Statics, static{
			Targets: []string{at.Host}, Labels: map[string]string{ClusterLabel: cluster, "instance": t.Instance},
		})
	}
	data, err := yaml.Marshal(map[string]any{
		"global":         map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s"},
		"scrape_configs": jobs,
	})
	if err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	return data, nil
}
