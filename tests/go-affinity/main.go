// Reads cases, a JSON object a line, and prints what Kubernetes makes of each: which nodes the required node affinity and
// node selector of each pod match, as the scheduler asks it, and which nodes each label selector matches, as kubectl
// parses it. A verdict is a string with a 1 or 0 a node; a selector that does not parse is null.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

type node struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels"`
}

type pod struct {
	NodeSelector map[string]string `json:"nodeSelector"`
	Required     *v1.NodeSelector  `json:"required"`
}

type question struct {
	Nodes     []node   `json:"nodes"`
	Pods      []pod    `json:"pods"`
	Selectors []string `json:"selectors"`
}

type answer struct {
	Pods      []string  `json:"pods"`
	Selectors []*string `json:"selectors"`
}

func verdict(nodes []node, matches func(node) bool) string {
	bits := make([]byte, len(nodes))
	for i, each := range nodes {
		bits[i] = '0'
		if matches(each) {
			bits[i] = '1'
		}
	}
	return string(bits)
}

func judge(asked question) (result answer) {
	for _, each := range asked.Pods {
		spec := v1.PodSpec{NodeSelector: each.NodeSelector}
		if each.Required != nil {
			spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: each.Required,
			}}
		}
		required := nodeaffinity.GetRequiredNodeAffinity(&v1.Pod{Spec: spec})
		result.Pods = append(result.Pods, verdict(asked.Nodes, func(n node) bool {
			matched, _ := required.Match(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}})
			return matched
		}))
	}
	for _, each := range asked.Selectors {
		selector, err := labels.Parse(each)
		if err != nil {
			result.Selectors = append(result.Selectors, nil)
			continue
		}
		bits := verdict(asked.Nodes, func(n node) bool { return selector.Matches(labels.Set(n.Labels)) })
		result.Selectors = append(result.Selectors, &bits)
	}
	return result
}

func run() error {
	output := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	decoder := json.NewDecoder(bufio.NewReader(os.Stdin))
	for decoder.More() {
		var asked question
		if err := decoder.Decode(&asked); err != nil {
			return err
		}
		if err := encoder.Encode(judge(asked)); err != nil {
			return err
		}
	}
	return output.Flush()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
