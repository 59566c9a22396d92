package items

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// key names one fact of a shipment; it is also the JSON key.
type key string

// field is what the generator knows of one fact: how people label it, how a question names it, how it is drawn.
type field struct {
	key key
	// customs: 0 on both documents, +1 only on customs declarations, -1 only on bills of lading.
	customs int
	number  bool
	// names are used in questions.
	names []string
	// labels are used in documents; heldOut ones only in held-out templates, where they mix with the others.
	labels, heldOut []string
	value           func(r *rand.Rand) string
	// decimals and unit apply to numbers; units are written after the number, "USD" style ones before it.
	units []string
}

var fields = []field{
	{key: "shipper", names: []string{"shipper"}, labels: []string{"Shipper", "Shipped by", "Exporter", "Shipper Name", "Consignor"}, heldOut: []string{"Name of Shipper", "Exporter Name"}, value: company},
	{key: "consignee", names: []string{"consignee"}, labels: []string{"Consignee", "Consigned to", "Importer", "Consignee Name", "Receiver"}, heldOut: []string{"Name of Consignee", "Importer Name"}, value: company},
	{key: "notify", customs: -1, names: []string{"notify party"}, labels: []string{"Notify Party", "Notify", "Also Notify", "Party to Notify"}, heldOut: []string{"Notify Party Name"}, value: company},
	{key: "declarant", customs: 1, names: []string{"declarant"}, labels: []string{"Declarant", "Declared by", "Customs Broker", "Broker"}, heldOut: []string{"Name of Declarant", "Broker Name"}, value: company},
	{key: "vessel", names: []string{"vessel"}, labels: []string{"Vessel", "Ship", "Vessel Name", "Ocean Vessel", "Carrying Vessel"}, heldOut: []string{"Name of Vessel", "Ship Name"}, value: vessel},
	{key: "voyage", customs: -1, names: []string{"voyage", "voyage number"}, labels: []string{"Voyage", "Voy. No.", "Voyage No", "Voyage Number"}, heldOut: []string{"No. of Voyage", "Voy. Number"}, value: voyage},
	{key: "loading_port", names: []string{"port of loading", "loading port"}, labels: []string{"Port of Loading", "Loading Port", "POL", "Load Port", "Loaded at"}, heldOut: []string{"Port of Load", "Loading at"}, value: port},
	{key: "discharge_port", names: []string{"port of discharge", "discharge port"}, labels: []string{"Port of Discharge", "Discharge Port", "POD", "Disch. Port", "Discharged at"}, heldOut: []string{"Port of Disch.", "Discharge at"}, value: port},
	{key: "bill", customs: -1, names: []string{"bill number"}, labels: []string{"B/L No.", "Bill of Lading No", "BL Number", "B/L Number", "Bill Number"}, heldOut: []string{"Bill No.", "No. of B/L"}, value: bill},
	{key: "entry", customs: 1, names: []string{"entry number"}, labels: []string{"Entry No.", "Declaration No", "Entry Number", "Customs Entry"}, heldOut: []string{"Customs Entry No", "No. of Entry"}, value: entry},
	{key: "container", names: []string{"container", "container number"}, labels: []string{"Container", "Container No.", "Cntr No", "Container Number", "Cntr"}, heldOut: []string{"No. of Container", "Cntr Number"}, value: container},
	{key: "seal", customs: -1, names: []string{"seal", "seal number"}, labels: []string{"Seal", "Seal No.", "Seal Number", "Carrier Seal"}, heldOut: []string{"No. of Seal", "Carrier Seal No"}, value: seal},
	{key: "hs_code", names: []string{"HS code"}, labels: []string{"HS Code", "HS", "Tariff Code", "Commodity Code"}, heldOut: []string{"HS Tariff Code", "Tariff"}, value: hsCode},
	{key: "goods", names: []string{"goods", "description of goods"}, labels: []string{"Goods", "Description of Goods", "Commodity", "Cargo", "Description"}, heldOut: []string{"Cargo Description", "Goods Description"}, value: goods},
	{key: "incoterm", names: []string{"incoterm"}, labels: []string{"Incoterm", "Terms", "Delivery Terms", "Incoterms"}, heldOut: []string{"Terms of Delivery"}, value: incoterm},
	{key: "origin", customs: 1, names: []string{"country of origin", "origin"}, labels: []string{"Country of Origin", "Origin", "Origin Country", "Made in"}, heldOut: []string{"Goods Origin"}, value: country},
	{key: "issued", names: []string{"date of issue", "issue date"}, labels: []string{"Date of Issue", "Issued", "Issue Date", "Issued on"}, heldOut: []string{"Date Issued"}},
	{key: "arrival", names: []string{"arrival date", "date of arrival"}, labels: []string{"ETA", "Arrival Date", "Date of Arrival", "Arrival", "Arrives on"}, heldOut: []string{"ETA Date", "Arriving on"}},

	{key: "gross_weight", number: true, names: []string{"gross weight"}, labels: []string{"Gross Weight", "Gross Wt.", "G.W.", "Weight gross", "Gross Mass"}, heldOut: []string{"Wt. gross", "Gross"}, value: weight, units: []string{" kg", " KGS", " kgs", ""}},
	{key: "net_weight", number: true, names: []string{"net weight"}, labels: []string{"Net Weight", "Net Wt.", "N.W.", "Weight net", "Net Mass"}, heldOut: []string{"Wt. net", "Net"}, value: weight, units: []string{" kg", " KGS", " kgs", ""}},
	{key: "packages", number: true, names: []string{"number of packages", "packages"}, labels: []string{"Packages", "No. of Packages", "Pkgs", "Number of Packages", "Total Packages"}, heldOut: []string{"No. of Pkgs", "Total Pkgs"}, value: packages, units: []string{" cartons", " pallets", " ctns", " bags", " PKGS", ""}},
	{key: "volume", number: true, customs: -1, names: []string{"volume"}, labels: []string{"Volume", "Measurement", "CBM", "Cubic Volume", "Meas."}, heldOut: []string{"Total Volume", "Meas. CBM"}, value: volume, units: []string{" cbm", " m3", " CBM", ""}},
	{key: "value", number: true, names: []string{"customs value", "value"}, labels: []string{"Customs Value", "Value", "Invoice Value", "Declared Value", "Value declared"}, heldOut: []string{"Total Value", "Value of Goods"}, value: money, units: []string{" USD", " EUR", "USD ", "EUR ", "$"}},
	{key: "freight", number: true, names: []string{"freight", "freight charge"}, labels: []string{"Freight", "Freight Charge", "Ocean Freight", "Freight Amount"}, heldOut: []string{"Total Freight", "Charge for Freight"}, value: money, units: []string{" USD", " EUR", "USD ", "EUR ", "$"}},
	{key: "duty", number: true, customs: 1, names: []string{"duty", "customs duty"}, labels: []string{"Duty", "Customs Duty", "Duty Amount", "Import Duty"}, heldOut: []string{"Total Duty", "Duty payable"}, value: money, units: []string{" USD", " EUR", "USD ", "EUR ", "$"}},
}

func oneOf[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

func digits(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('0' + r.IntN(10))
	}
	return string(b)
}

func letters(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte('A' + r.IntN(26))
	}
	return string(b)
}

var (
	onsets = strings.Fields("B Br C D Dr F G Gr H K Kl L M N P Pr R S St T Tr V W Z")
	vowels = strings.Fields("a e i o u ai ei")
	middle = strings.Fields("l n r s t m d v k b nd rt ll st lm rk")
	finals = strings.Fields("n r s k x l a o en ia us ik or an el om et")
	trades = strings.Fields("Trading Foods Timber Textiles Metals Chemicals Tools Papers Motors Marine Logistics Steel Glass Fruits Coffee Plastics Optics Seeds")
	forms  = strings.Fields("Ltd GmbH BV SA Inc AS Oy LLC")
	ships  = strings.Fields("Star Express Bay Bridge Spirit Pioneer Trader Wave Crown Horizon Fortune Breeze")
	ports  = strings.Split("Rotterdam,Hamburg,Antwerp,Singapore,Shanghai,Ningbo,Busan,Santos,Durban,Mombasa,Jeddah,Piraeus,Valencia,Genoa,Felixstowe,Gdansk,Gothenburg,Oslo,Halifax,Montreal,Savannah,Houston,Oakland,Seattle,Callao,Manzanillo,Colombo,Chennai,Mumbai,Karachi,Yokohama,Kobe,Osaka,Manila,Hai Phong,Port Klang,Laem Chabang,Tanger Med,Le Havre,Cape Town,Buenos Aires,New York,Los Angeles,Port Said,Abidjan,Lagos,Dakar,Casablanca,Lisbon,Bilbao,Trieste,Koper,Varna,Odesa,Riga,Tallinn,Helsinki,Aarhus,Dublin,Belfast", ",")
	lands  = strings.Split("China,India,Brazil,Germany,Turkey,Vietnam,Chile,Peru,Kenya,Morocco,Poland,Finland,Norway,Spain,Italy,Japan,Mexico,Canada,Egypt,Ghana,Thailand,Malaysia,Portugal,Sweden", ",")
	wares  = strings.Split("Roasted Coffee,Green Tea,Ceramic Tiles,Steel Pipes,Copper Wire,Cotton Yarn,Wool Carpets,Frozen Shrimp,Canned Tuna,Olive Oil,Red Wine,Bicycle Parts,Tractor Parts,Brake Discs,Solar Panels,LED Lamps,Paper Rolls,Plywood,Rubber Tyres,Glass Jars,Toys,Leather Shoes,Office Chairs,Pumps,Valves,Ball Bearings,Cocoa Beans,Basmati Rice,Soy Meal,Vitamins,Paint,Fertilizer,Batteries,Transformers,Laptops,Printers,Garments,Garlic,Cashew Nuts,Dried Figs", ",")
	terms  = strings.Fields("EXW FCA FAS FOB CFR CIF CPT CIP DAP DPU DDP")
	months = strings.Fields("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec")
)

// word makes a name nobody has read before, so that copying is the only way to answer with it.
func word(r *rand.Rand) string {
	s := oneOf(r, onsets) + oneOf(r, vowels)
	for range r.IntN(3) {
		s += oneOf(r, middle) + oneOf(r, vowels)
	}
	return s + oneOf(r, finals)
}

func company(r *rand.Rand) string {
	s := word(r) + " " + oneOf(r, trades)
	if r.IntN(5) == 0 {
		s = word(r) + " & " + word(r)
	}
	return s + " " + oneOf(r, forms)
}

func vessel(r *rand.Rand) string {
	s := word(r)
	if r.IntN(3) > 0 {
		s += " " + oneOf(r, ships)
	}
	if r.IntN(2) == 0 {
		s = "MV " + s
	}
	return s
}

func voyage(r *rand.Rand) string { return digits(r, 3) + oneOf(r, strings.Fields("E W N S")) }
func port(r *rand.Rand) string   { return oneOf(r, ports) }
func bill(r *rand.Rand) string   { return letters(r, 4) + digits(r, 6+r.IntN(3)) }
func entry(r *rand.Rand) string  { return digits(r, 2) + letters(r, 2) + digits(r, 6) }
func container(r *rand.Rand) string {
	return letters(r, 3) + "U" + digits(r, 7)
}
func seal(r *rand.Rand) string     { return letters(r, r.IntN(3)) + digits(r, 6) }
func hsCode(r *rand.Rand) string   { return digits(r, 4) + "." + digits(r, 2) }
func goods(r *rand.Rand) string    { return oneOf(r, wares) }
func incoterm(r *rand.Rand) string { return oneOf(r, terms) }
func country(r *rand.Rand) string  { return oneOf(r, lands) }

// Numbers have at most two decimals, so that a dot or comma before three digits always groups.
func weight(r *rand.Rand) string {
	s := strconv.Itoa(whole(r, 2+r.IntN(4)))
	if r.IntN(4) == 0 {
		s += "." + strconv.Itoa(1+r.IntN(9))
	}
	return s
}
func packages(r *rand.Rand) string { return strconv.Itoa(whole(r, 1+r.IntN(4))) }
func volume(r *rand.Rand) string {
	return fmt.Sprintf("%d.%0*d", whole(r, 1+r.IntN(3)), 1+r.IntN(2), 1+r.IntN(9))
}
func money(r *rand.Rand) string {
	s := strconv.Itoa(whole(r, 3+r.IntN(4)))
	if r.IntN(2) == 0 {
		s += "." + digits(r, 2)
	}
	return s
}

// whole draws a number of exactly n digits.
func whole(r *rand.Rand, n int) int {
	low := 1
	for range n - 1 {
		low *= 10
	}
	return low + r.IntN(9*low)
}

type date struct{ year, month, day int }

func drawDate(r *rand.Rand) date { return date{2023 + r.IntN(4), 1 + r.IntN(12), 1 + r.IntN(28)} }
