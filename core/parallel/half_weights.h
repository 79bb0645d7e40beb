// Half-precision copies of weights as state: where the forward part of a plan casts a parameter to a half type, it
// reads the input "half/<parameter>" (role kCopy) instead, which the optimizer writes beside the parameter. So a weight
// is rounded once an update, not once a micro-step and evaluation, and what a step reads of it is half as large.
// Results keep every bit: the copy is the parameter rounded to nearest even, as the cast was.
//
// Averages, which "evaluate_ema" reads in place of parameters, have no copies: they are cast where they are read.
//
// Copies follow from the parameters and are not saved. The plan "halves", which every program has that has copies,
// makes them all anew: it is run where parameters were set from outside, at the start, on loading and on going on.
// Parameters that no plan reads but through their copies (Program::read_in_half) need not be whole on every rank.
//
// Runs behind "gradients": gradients flow to the f32 parameter through the cast that is taken out here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/graph/graph.h"

namespace switchyard {

struct Pass;
struct Program;
Pass HalfWeightsPass();

// What the input that is the copy of a parameter is called.
std::string HalfWeightName(const std::string& parameter);
// The copy of a parameter that the plan keeps, for the optimizer to write beside it; none where there is none.
Value HalfWeightOf(Graph& graph, const Ref& parameter);
// The parameter whose copy the input is; "": of none.
std::string CopiedBy(const Node& input);

// The copies that a graph has, each with its parameter: ids of inputs.
std::vector<std::pair<int, int>> HalfWeightsOf(const Graph& graph);

// The plan "halves", for the copies that the program's plans have.
void AddHalves(Program& program);

}  // namespace switchyard
