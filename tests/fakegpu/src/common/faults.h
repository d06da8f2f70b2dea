/*
 * Faults on demand, from FAKEGPU_FAULTS or the configuration's `faults`: entries divided by ";".
 *
 *   CALL=error:CODE      every call of that function answers CODE and does nothing
 *   CALL=error:CODE@N    only the N-th one of this process does
 *   CALL=sleep:US        every call first sleeps a random time of up to US microseconds
 *
 * CALL is the exported name, without _ptsz or _ptds, and may end in "*".
 */
#pragma once

#include <stdbool.h>

/* False, with a line on stderr, if the text is not of that form. NULL and "" mean none. */
bool faults_set(const char *text);

/* 0, or the code that the call must answer. Sleeps if it was told to. */
int fault_of(const char *call);
