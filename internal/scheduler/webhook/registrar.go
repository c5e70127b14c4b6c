package webhook

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	webhookName = "pods.intake.k8s-1m.dev"
	// timeoutSeconds is the minimum that the API server accepts. Only a process that hangs reaches it.
	timeoutSeconds = 1
)

// registrar maintains the ValidatingWebhookConfiguration.
type registrar struct {
	client     kubernetes.Interface
	name, url  string
	conditions []admissionregistration.MatchCondition
}

func newRegistrar(client kubernetes.Interface, name, url string, schedulers []string) *registrar {
	return &registrar{client: client, name: name, url: url, conditions: conditionsFor(schedulers)}
}

// conditionsFor returns match conditions that select unscheduled pods with the given scheduler names.
func conditionsFor(schedulers []string) []admissionregistration.MatchCondition {
	names := make([]string, len(schedulers))
	for i, name := range schedulers {
		names[i] = strconv.QuoteToASCII(name)
	}
	slices.Sort(names)
	return []admissionregistration.MatchCondition{
		{Name: "our-schedulers", Expression: "object.spec.schedulerName in [" + strings.Join(names, ", ") + "]"},
		{Name: "without-a-node", Expression: "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
		{Name: "without-gates", Expression: "!has(object.spec.schedulingGates) || size(object.spec.schedulingGates) == 0"},
		{Name: "to-be-stored", Expression: "!has(request.dryRun) || !request.dryRun"},
	}
}

// desired returns the desired webhooks of the configuration. It sets also the fields that have defaults, so
// that the result can be compared with the stored configuration.
func (r *registrar) desired(bundle []byte) []admissionregistration.ValidatingWebhook {
	return []admissionregistration.ValidatingWebhook{{
		Name:         webhookName,
		ClientConfig: admissionregistration.WebhookClientConfig{URL: &r.url, CABundle: bundle},
		Rules: []admissionregistration.RuleWithOperations{{
			Operations: []admissionregistration.OperationType{admissionregistration.Create},
			Rule: admissionregistration.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{string(v1.ResourcePods)},
				Scope: new(admissionregistration.NamespacedScope),
			},
		}},
		FailurePolicy: new(admissionregistration.Ignore), MatchPolicy: new(admissionregistration.Equivalent),
		// A request has no effect outside this process.
		SideEffects:    new(admissionregistration.SideEffectClassNone),
		TimeoutSeconds: new(int32(timeoutSeconds)), AdmissionReviewVersions: []string{"v1"},
		MatchConditions:   r.conditions,
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
	}}
}

// ensure writes the configuration if it differs from the desired one. bundle is the CA bundle in PEM. It
// does not change a configuration that this program did not create.
func (r *registrar) ensure(ctx context.Context, bundle []byte) error {
	configurations := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	desired := r.desired(bundle)
	stored, err := configurations.Get(ctx, r.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configurations.Create(ctx, &admissionregistration.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: r.name, Labels: map[string]string{ManagedByLabel: managedBy}}, Webhooks: desired,
		}, metav1.CreateOptions{})
	case err == nil && !created(stored):
		err = errNotOurs
	case err == nil && !(equality.Semantic.DeepEqual(stored.Webhooks, desired) && stored.Labels[ManagedByLabel] == managedBy):
		metav1.SetMetaDataLabel(&stored.ObjectMeta, ManagedByLabel, managedBy)
		stored.Webhooks = desired
		_, err = configurations.Update(ctx, stored, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing ValidatingWebhookConfiguration %s: %w", r.name, err)
	}
	return nil
}

// created reports whether this program has created a configuration. An earlier version set no label.
func created(stored *admissionregistration.ValidatingWebhookConfiguration) bool {
	return stored.Labels[ManagedByLabel] == managedBy || len(stored.Webhooks) == 1 && stored.Webhooks[0].Name == webhookName
}

// withdraw deletes the configuration, unless another process has replaced it.
func (r *registrar) withdraw(ctx context.Context) error {
	configurations := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	stored, err := configurations.Get(ctx, r.name, metav1.GetOptions{})
	if err == nil {
		if !slices.ContainsFunc(stored.Webhooks, r.ours) {
			return nil
		}
		err = configurations.Delete(ctx, r.name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &stored.UID, ResourceVersion: &stored.ResourceVersion},
		})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting ValidatingWebhookConfiguration %s: %w", r.name, err)
	}
	return nil
}

// ours reports whether a webhook has the URL of this process.
func (r *registrar) ours(webhook admissionregistration.ValidatingWebhook) bool {
	return webhook.ClientConfig.URL != nil && *webhook.ClientConfig.URL == r.url
}

// watch returns a channel that receives a value when the configuration has changed.
func (r *registrar) watch(ctx context.Context) (<-chan struct{}, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, r.name).String()
	}))
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informer := factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	factory.Start(ctx.Done())
	return changed, err
}
