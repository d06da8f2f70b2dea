/* Of the whole product: the chart's appVersion. */
#ifndef VERSION_H
#define VERSION_H

#define VERSION "0.1.0"

#endif
