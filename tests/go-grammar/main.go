// Reads JSON strings, one a line, and prints what Go makes of each: strconv.ParseUint and ParseFloat as KAI calls them,
// and resource.ParseQuantity of Kubernetes' apimachinery. A failed parse is null.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
)

type verdict struct {
	Uint     *string `json:"uint"`
	Float    *string `json:"float"`    // the 64 bits, in hexadecimal
	Unscaled *string `json:"unscaled"` // a quantity is unscaled * 10^-scale
	Scale    int32   `json:"scale"`
	Value    *int64  `json:"value"` // Quantity.Value(), where that does not take gigabytes
}

func judge(text string) (result verdict) {
	if value, err := strconv.ParseUint(text, 10, 64); err == nil {
		decimal := strconv.FormatUint(value, 10)
		result.Uint = &decimal
	}
	if value, err := strconv.ParseFloat(text, 64); err == nil {
		bits := fmt.Sprintf("%016x", math.Float64bits(value))
		result.Float = &bits
	}
	if value, err := resource.ParseQuantity(text); err == nil {
		exact := value.AsDec()
		unscaled := exact.UnscaledBig().String()
		result.Unscaled = &unscaled
		result.Scale = int32(exact.Scale())
		if result.Scale > -1000 && result.Scale < 1000 {
			whole := value.Value()
			result.Value = &whole
		}
	}
	return result
}

func run() error {
	output := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(output)
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		var text string
		if err := json.Unmarshal(input.Bytes(), &text); err != nil {
			return err
		}
		if err := encoder.Encode(judge(text)); err != nil {
			return err
		}
	}
	if err := input.Err(); err != nil {
		return err
	}
	return output.Flush()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
