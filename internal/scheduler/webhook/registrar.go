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
	// The least that the API server takes. It passes only if this process has hung.
	timeoutSeconds = 1
)

// registrar keeps the configuration by which API servers find the webhook.
type registrar struct {
	client     kubernetes.Interface
	name, url  string
	conditions []admissionregistration.MatchCondition
}

func newRegistrar(client kubernetes.Interface, name, url string, schedulers []string) *registrar {
	return &registrar{client: client, name: name, url: url, conditions: conditionsFor(schedulers)}
}

// conditionsFor let those pods through that wait for one of these schedulers.
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

// wanted is the webhook that is to be there. Fields with defaults are set, so that it
// can be compared with what is there.
func (r *registrar) wanted(bundle []byte) []admissionregistration.ValidatingWebhook {
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
		// Nothing outside this process changes because of a call.
		SideEffects:    new(admissionregistration.SideEffectClassNone),
		TimeoutSeconds: new(int32(timeoutSeconds)), AdmissionReviewVersions: []string{"v1"},
		MatchConditions:   r.conditions,
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
	}}
}

// ensure writes the configuration if it is not as it should be.
func (r *registrar) ensure(ctx context.Context, bundle []byte) error {
	configurations := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	wanted := r.wanted(bundle)
	there, err := configurations.Get(ctx, r.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configurations.Create(ctx, &admissionregistration.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: r.name}, Webhooks: wanted,
		}, metav1.CreateOptions{})
	case err == nil && !equality.Semantic.DeepEqual(there.Webhooks, wanted):
		there.Webhooks = wanted
		_, err = configurations.Update(ctx, there, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("keeping ValidatingWebhookConfiguration %s: %w", r.name, err)
	}
	return nil
}

// withdraw takes the configuration away, unless it is another process's by now.
func (r *registrar) withdraw(ctx context.Context) error {
	configurations := r.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	there, err := configurations.Get(ctx, r.name, metav1.GetOptions{})
	if err == nil {
		if !slices.ContainsFunc(there.Webhooks, r.ours) {
			return nil
		}
		err = configurations.Delete(ctx, r.name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &there.UID, ResourceVersion: &there.ResourceVersion},
		})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("removing ValidatingWebhookConfiguration %s: %w", r.name, err)
	}
	return nil
}

func (r *registrar) ours(webhook admissionregistration.ValidatingWebhook) bool {
	return webhook.ClientConfig.URL != nil && *webhook.ClientConfig.URL == r.url
}

// watch tells of changes of the configuration.
func (r *registrar) watch(ctx context.Context) (<-chan struct{}, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(r.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, r.name).String()
	}))
	changed := make(chan struct{}, 1)
	tell := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informer := factory.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { tell() }, UpdateFunc: func(any, any) { tell() }, DeleteFunc: func(any) { tell() },
	})
	factory.Start(ctx.Done())
	return changed, err
}
