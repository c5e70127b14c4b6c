// Package kube contains the operations that k1m performs through a cluster's API:
//
//   - [Config] reads a kubeconfig for k1m's own clients.
//   - [Bootstrap] applies the objects of bootstrap.yaml, which every cluster needs, and [Apply] those of any file.
//   - [ReleaseNodeLeases] and [WakePods] let pods start soon after a restart of kwok.
package kube

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const fieldManager = "k1m"

//go:embed bootstrap.yaml
var bootstrapManifest []byte

// Bootstrap applies the objects of bootstrap.yaml, which every cluster needs. It is idempotent.
func Bootstrap(ctx context.Context, config *rest.Config) error {
	return Apply(ctx, config, bootstrapManifest)
}

// Apply applies the objects of a YAML file. It is idempotent.
func Apply(ctx context.Context, config *rest.Config, manifest []byte) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	objects, err := decodeAll(manifest)
	if err != nil {
		return err
	}
	for _, object := range objects {
		resource, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
		_, err := client.Resource(resource).Namespace(object.GetNamespace()).Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// decodeAll decodes the objects of a YAML file.
func decodeAll(manifest []byte) ([]*unstructured.Unstructured, error) {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), len(manifest))
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decoding a manifest: %w", err)
		}
		objects = append(objects, object)
	}
}
