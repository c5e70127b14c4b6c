package storetrace

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgets     = schema.GroupVersionResource{Group: "life.example.com", Version: "v1", Resource: "widgets"}
)

// definition returns the CustomResourceDefinition of widgets.
func definition() *unstructured.Unstructured {
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	version := map[string]any{
		"name": widgets.Version, "served": true, "storage": true,
		"schema":       map[string]any{"openAPIV3Schema": anything},
		"subresources": map[string]any{"status": map[string]any{}},
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": widgets.GroupResource().String()},
		"spec": map[string]any{
			"group": widgets.Group, "scope": "Namespaced", "versions": []any{version},
			"names": map[string]any{"plural": widgets.Resource, "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
		},
	}}
}

// customResources creates a CustomResourceDefinition and custom resources, patches the custom resources and
// their status, and deletes the definition.
func (r *runner) customResources(ctx context.Context) error {
	if _, err := r.dynamic.Resource(definitions).Create(ctx, definition(), metav1.CreateOptions{}); err != nil {
		return err
	}
	objects := r.dynamic.Resource(widgets).Namespace(namespace)
	err := await(ctx, func(ctx context.Context) (bool, error) {
		_, err := objects.List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsTooManyRequests(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the CustomResourceDefinition: %w", err)
	}
	for i := range r.options.Objects {
		name := fmt.Sprintf("widget-%03d", i)
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": widgets.GroupVersion().String(), "kind": "Widget",
			"metadata": map[string]any{"name": name}, "spec": map[string]any{"size": int64(i)},
		}}
		if _, err := objects.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
		for _, subresource := range [][]string{nil, {"status"}} {
			patch := []byte(`{"spec":{"size":-1},"status":{"seen":true}}`)
			if _, err := objects.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, subresource...); err != nil {
				return err
			}
		}
	}
	if err := objects.Delete(ctx, "widget-000", metav1.DeleteOptions{}); err != nil {
		return err
	}
	crds := r.dynamic.Resource(definitions)
	if err := crds.Delete(ctx, widgets.GroupResource().String(), metav1.DeleteOptions{}); err != nil {
		return err
	}
	return await(ctx, func(ctx context.Context) (bool, error) {
		_, err := crds.Get(ctx, widgets.GroupResource().String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}
